#include "weft/pipeline/runner/wiring.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::pipeline_internal {
namespace {

const std::vector<StageOutput>& inputs_of_stage(const Wiring& wiring, int stage) {
  return wiring[static_cast<size_t>(stage)];
}

bool takes_all(const Wiring& wiring, int stage) {
  const std::vector<StageOutput>& inputs = inputs_of_stage(wiring, stage);
  return inputs.size() == 1 && inputs.front().output == StageOutput::kAll;
}

}  // namespace

absl::StatusOr<StageGraph> graph_of(const Wiring& wiring) {
  StageGraph graph;
  const int stages = static_cast<int>(wiring.size());
  std::vector<bool> used(wiring.size());
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<int>& inputs = graph.inputs.emplace_back();
    for (const auto& [from, output] : inputs_of_stage(wiring, stage)) {
      if (from < 0 || from >= stage) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", stage, " cannot take outputs of stage ", from));
      }
      if (output < 0 && !takes_all(wiring, stage)) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", stage, " takes output ", output, " of stage ", from,
                         "; all outputs can only be taken of one stage, and nothing else"));
      }
      used[static_cast<size_t>(from)] = true;
      inputs.push_back(from);
    }
    std::sort(inputs.begin(), inputs.end());
    inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  }
  for (int stage = 0; stage + 1 < stages; ++stage) {
    if (!used[static_cast<size_t>(stage)]) {
      return absl::InvalidArgumentError(absl::StrCat("no stage takes an output of stage ", stage));
    }
  }
  return graph;
}

absl::StatusOr<StageTensors> outputs_for(const Wiring& wiring, int from, int to,
                                         const StageTensors& outputs) {
  if (takes_all(wiring, to)) return outputs;
  StageTensors taken;
  for (const auto& [stage, output] : inputs_of_stage(wiring, to)) {
    if (stage != from) continue;
    const auto place = static_cast<size_t>(output);
    if (place >= outputs.values.size()) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", to, " takes output ", output,
                                                     " of stage ", from, ", which has ",
                                                     outputs.values.size()));
    }
    taken.values.push_back(outputs.values[place]);
    taken.requires_grad.push_back(outputs.requires_grad[place]);
  }
  return taken;
}

absl::StatusOr<StageTensors> inputs_from(const Wiring& wiring, int stage,
                                         std::map<int, StageTensors> messages) {
  if (takes_all(wiring, stage)) return std::move(messages.begin()->second);
  std::map<int, size_t> next;  // by stage
  StageTensors inputs;
  for (const auto& [from, output] : inputs_of_stage(wiring, stage)) {
    StageTensors& message = messages[from];
    const size_t place = next[from]++;
    if (place >= message.values.size()) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", from, " sent ",
                                                     message.values.size(), " tensors to stage ",
                                                     stage, ", which takes more"));
    }
    inputs.values.push_back(std::move(message.values[place]));
    inputs.requires_grad.push_back(message.requires_grad[place]);
  }
  return inputs;
}

std::vector<at::Tensor> gradients_for(const Wiring& wiring, int from, int to,
                                      const std::vector<at::Tensor>& gradients) {
  if (takes_all(wiring, from)) return gradients;
  std::vector<at::Tensor> taken;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (inputs_of_stage(wiring, from)[i].stage == to) taken.push_back(gradients[i]);
  }
  return taken;
}

absl::Status add_gradients(const Wiring& wiring, int from, int to,
                           const std::vector<at::Tensor>& gradients,
                           std::vector<at::Tensor>& sums) {
  std::vector<size_t> places;  // of each gradient, the output of `to`
  if (takes_all(wiring, from)) {
    for (size_t i = 0; i < sums.size(); ++i) places.push_back(i);
  } else {
    for (const auto& [stage, output] : inputs_of_stage(wiring, from)) {
      if (stage == to) places.push_back(static_cast<size_t>(output));
    }
  }
  if (gradients.size() != places.size()) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", from, " sent ", gradients.size(),
                                                   " gradients for the ", places.size(),
                                                   " outputs that it takes of stage ", to));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (!gradients[i].defined()) continue;
    at::Tensor& sum = sums[places[i]];
    sum = sum.defined() ? sum + gradients[i] : gradients[i];
  }
  return absl::OkStatus();
}

}  // namespace weft::pipeline_internal
