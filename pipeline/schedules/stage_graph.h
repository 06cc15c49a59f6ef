// Which stages of a pipeline take which outputs of which others.
//
// Thread safety: plain values.
#pragma once

#include <tuple>
#include <vector>

namespace weft {

struct StageGraph {
  // For each stage, the stages whose outputs it takes, ascending. They have lower numbers. A stage
  // without any takes the inputs of the pipeline.
  std::vector<std::vector<int>> inputs;

  // Each stage takes the output of the one before it.
  static StageGraph chain(int stages) {
    StageGraph graph;
    for (int stage = 0; stage < stages; ++stage) {
      graph.inputs.push_back(stage == 0 ? std::vector<int>{} : std::vector<int>{stage - 1});
    }
    return graph;
  }
  int stages() const { return static_cast<int>(inputs.size()); }
  // For each stage, the stages that take its outputs, ascending.
  std::vector<std::vector<int>> users() const {
    std::vector<std::vector<int>> users(inputs.size());
    for (int stage = 0; stage < stages(); ++stage) {
      for (const int input : inputs[static_cast<size_t>(stage)]) {
        users[static_cast<size_t>(input)].push_back(stage);
      }
    }
    return users;
  }
};

// An output of a stage, as an input of another one.
struct StageOutput {
  static constexpr int kAll = -1;
  int stage = 0;
  int output = kAll;  // kAll: all outputs of the stage, in order
};
inline auto weft_fields(StageOutput& o) { return std::tie(o.stage, o.output); }

}  // namespace weft
