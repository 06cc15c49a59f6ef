// A contestant of one process that leads and many members. All run all the time. Rows have an
// amount (how many members take part, or micro-batches); in a row without one it is this
// contestant's own best: the amount with which its rows of the same kind were fastest so far.
//
// Thread safety, lifetime, blocking and errors: those of Group.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/bench/processes/child_process.h"
#include "weft/bench/processes/group.h"

namespace weft::bench {

class Crowd final : public Group {
 public:
  struct Options {
    std::string name;
    int members = 1;
    bool amounts_are_members = true;
    double patience_seconds = 0;  // for a block, besides the usual
    // Started with `--role leader` or `--role member` behind them: a program and its first
    // arguments.
    std::vector<std::string> command;
  };

  explicit Crowd(Options options) : options_(std::move(options)) {}
  ~Crowd() override { stop(); }

  const std::string& name() const override { return options_.name; }
  // All that is left idle costs the others nothing, but who polls would.
  bool spins_when_idle() const override { return true; }
  absl::Status start() override;
  void pause() override;
  void resume() override;
  absl::StatusOr<BlockResult> run(const Row& row, double seconds) override;

  // With which amount its rows of this kind were fastest so far; 0: there were none.
  int64_t best_amount(Work work) const;

 private:
  // Of all rounds of a kind of row, by amounts.
  struct Rates {
    double sum = 0;
    int rounds = 0;
    double mean() const { return sum / rounds; }
  };

  absl::Status start_all();
  absl::StatusOr<Usage> usage_of_all();
  void stop();

  const Options options_;
  std::vector<ChildProcess> processes_;  // the leader first
  std::map<Work, std::map<int64_t, Rates>> rates_;
  std::set<Work> unknown_;  // whose rows its program does not have
};

}  // namespace weft::bench
