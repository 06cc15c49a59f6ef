#include "weft/dist_autograd/graph/internal/graph_sources.h"

#include <utility>

#include <torch/csrc/autograd/engine.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"

namespace weft::dist_autograd_internal {

std::string GraphSource::origin() const {
  return send.valid() ? absl::StrCat(send.to_string(), " from worker ", peer.to_string())
                      : "the roots";
}

absl::Status GraphSource::check(torch::autograd::variable_list& gradients) const {
  if (gradients.size() != edges.size()) {
    return absl::InvalidArgumentError(absl::StrCat(gradients.size(), " gradients for the ",
                                                   edges.size(), " tensors of ", origin()));
  }
  for (size_t slot = 0; slot < gradients.size(); ++slot) {
    if (gradients[slot].defined() && !edges[slot].is_valid()) {
      return absl::InvalidArgumentError(absl::StrCat("a gradient came for tensor ", slot, " of ",
                                                     origin(), ", which requires none"));
    }
  }
  try {
    torch::autograd::validate_outputs(
        edges, gradients, [](const std::string& text) { return absl::StrCat("an ", text); });
  } catch (...) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients for ", origin(), ": ", text_of_current_exception()));
  }
  return absl::OkStatus();
}

absl::Status GraphSources::add(GraphSource source) {
  if (!index_.emplace(source.send, sources_.size()).second) {
    return absl::InternalError(
        absl::StrCat(source.send.to_string(), " is registered twice in one context"));
  }
  sources_.push_back(std::move(source));
  return absl::OkStatus();
}

absl::StatusOr<GraphSource*> GraphSources::open(SendId send) {
  const auto found = index_.find(send);
  if (found == index_.end()) {
    return absl::NotFoundError(send.valid()
                                   ? absl::StrCat(send.to_string(), " is no part of this pass")
                                   : "the roots of this pass are on another worker");
  }
  GraphSource& source = sources_[found->second];
  if (source.state != GraphSource::State::kOpen) {
    return absl::FailedPreconditionError(
        absl::StrCat(send.valid() ? send.to_string() : "roots", " is already ",
                     source.state == GraphSource::State::kFed ? "fed" : "cancelled"));
  }
  return &source;
}

const GraphSource* GraphSources::find(SendId send) const {
  const auto found = index_.find(send);
  return found == index_.end() ? nullptr : &sources_[found->second];
}

std::vector<SendId> GraphSources::unanswered() const {
  std::vector<SendId> sends;
  for (const GraphSource& source : sources_) {
    if (source.send.valid() && source.state == GraphSource::State::kOpen) {
      sends.push_back(source.send);
    }
  }
  return sends;
}

}  // namespace weft::dist_autograd_internal
