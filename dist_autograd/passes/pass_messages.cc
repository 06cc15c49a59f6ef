#include "weft/dist_autograd/passes/pass_messages.h"

#include <algorithm>

namespace weft::dist_autograd_internal {

std::string_view to_string(BackwardMode mode) {
  switch (mode) {
    case BackwardMode::kDefault:
      return "default";
    case BackwardMode::kAllSends:
      return "all_sends";
    case BackwardMode::kEager:
      return "eager";
  }
  return "unknown";
}

PassHistory::Outcome PassHistory::outcome(uint64_t k) const {
  if (k > decided || k < complete_from) return Outcome::kUnknown;
  return std::binary_search(aborted.begin(), aborted.end(), k) ? Outcome::kAborted
                                                               : Outcome::kCommitted;
}

void PassHistory::append(bool committed) {
  ++decided;
  if (committed) return;
  aborted.push_back(decided);
  if (aborted.size() > kMaxAbortedListed) {
    complete_from = aborted.front() + 1;
    aborted.erase(aborted.begin());
  }
}

const ContextId& context_of(const AutogradMessage& message) {
  struct Visitor {
    const ContextId& operator()(const ReleaseContextMessage& m) const { return m.context; }
    const ContextId& operator()(const HoldsContextMessage& m) const { return m.context; }
    const ContextId& operator()(const GradMessage& m) const { return m.header.pass.context; }
    const ContextId& operator()(const ActivateMessage& m) const { return m.header.pass.context; }
    const ContextId& operator()(const SealMessage& m) const { return m.pass.context; }
    const ContextId& operator()(const ReportMessage& m) const { return m.pass.context; }
    const ContextId& operator()(const PublishMessage& m) const { return m.pass.context; }
    const ContextId& operator()(const FailMessage& m) const { return m.pass.context; }
    const ContextId& operator()(const AbortMessage& m) const { return m.pass.context; }
  };
  return std::visit(Visitor{}, message);
}

const PassId* pass_of(const AutogradMessage& message) {
  struct Visitor {
    const PassId* operator()(const ReleaseContextMessage&) const { return nullptr; }
    const PassId* operator()(const HoldsContextMessage&) const { return nullptr; }
    const PassId* operator()(const GradMessage& m) const { return &m.header.pass; }
    const PassId* operator()(const ActivateMessage& m) const { return &m.header.pass; }
    const PassId* operator()(const SealMessage& m) const { return &m.pass; }
    const PassId* operator()(const ReportMessage& m) const { return &m.pass; }
    const PassId* operator()(const PublishMessage& m) const { return &m.pass; }
    const PassId* operator()(const FailMessage& m) const { return &m.pass; }
    const PassId* operator()(const AbortMessage& m) const { return &m.pass; }
  };
  return std::visit(Visitor{}, message);
}

PassHeader* header_of(AutogradMessage& message) {
  if (auto* grad = std::get_if<GradMessage>(&message)) return &grad->header;
  if (auto* activate = std::get_if<ActivateMessage>(&message)) return &activate->header;
  return nullptr;
}

bool may_piggyback(const AutogradMessage& message) {
  return std::holds_alternative<PublishMessage>(message) ||
         std::holds_alternative<ReleaseContextMessage>(message);
}

std::string_view kind_of(const AutogradMessage& message) {
  static constexpr std::string_view kNames[] = {"GRAD",   "ACTIVATE",        "SEAL",
                                                "REPORT", "PUBLISH",         "FAIL",
                                                "ABORT",  "RELEASE_CONTEXT", "HOLDS_CONTEXT"};
  static_assert(std::size(kNames) == std::variant_size_v<AutogradMessage>);
  return kNames[message.index()];
}

}  // namespace weft::dist_autograd_internal
