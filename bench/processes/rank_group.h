// A contestant whose processes are all alike: the ranks of a group that communicates.
//
// The ranks run the operations of a block without messages from the driver. Each rank runs the same
// number of them. The number comes from the block before. The first time it comes from trials that
// take longer and longer.
//
// Thread safety, lifetime, blocking and errors: those of Group. If a rank fails, its group stops at
// once, because the other ranks may wait for it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/bench/contestants/rank_block.h"
#include "weft/bench/processes/child_process.h"
#include "weft/bench/processes/group.h"

namespace weft::bench {

class RankGroup final : public Group {
 public:
  struct Options {
    std::string name;
    int ranks = 2;
    bool pin = false;  // rank r to processor r modulo their number
    // A program and its first arguments. It is started with `--role rank --rank R --ranks N` after
    // them.
    std::vector<std::string> command;
  };

  explicit RankGroup(Options options) : options_(std::move(options)) {}
  ~RankGroup() override { stop(); }

  const std::string& name() const override { return options_.name; }
  bool spins_when_idle() const override { return false; }
  absl::Status start() override;
  void pause() override;
  void resume() override;
  absl::StatusOr<BlockResult> run(const Row& row, double seconds) override;

 private:
  absl::Status start_all();
  absl::StatusOr<std::vector<nlohmann::json>> ask_all(const nlohmann::json& command,
                                                      double seconds);
  absl::StatusOr<BlockResult> run_counted(const Row& row, const Repetitions& repetitions,
                                          double seconds);
  absl::Status estimate(const Row& row, double seconds);
  void stop();
  void stop_at_once();

  const Options options_;
  std::vector<ChildProcess> processes_;
  double join_seconds_ = 0;
  std::map<std::string, double> seconds_per_call_;  // by row
};

// Combines the blocks of all ranks: the times of the slowest rank, the costs and bytes of all, the
// footprint of the largest, and the shared memory of all.
BlockResult of_all_ranks(const std::vector<BlockResult>& blocks);

}  // namespace weft::bench
