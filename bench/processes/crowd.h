// A contestant with one leading process and many members. All processes run all the time.
//
// A row may have an amount: the number of members that take part, or of micro-batches. In a row
// without one, the contestant uses its best amount: the one with which its rows of the same kind
// were fastest so far.
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
    double patience_seconds = 0;  // for a block, in addition to kPatienceSeconds
    // A program and its first arguments. It is started with `--role leader` or `--role member`
    // after them.
    std::vector<std::string> command;
  };

  explicit Crowd(Options options) : options_(std::move(options)) {}
  ~Crowd() override { stop(); }

  const std::string& name() const override { return options_.name; }
  // Always paused when idle: a contestant that polls would cost the others, and a pause costs
  // nothing.
  bool spins_when_idle() const override { return true; }
  absl::Status start() override;
  void pause() override;
  void resume() override;
  absl::StatusOr<BlockResult> run(const Row& row, double seconds) override;

  // The amount with which its rows of this kind were fastest so far. 0: there were none.
  int64_t best_amount(Work work) const;

 private:
  // The rates of all rounds of one kind of row with one amount.
  struct Rates {
    double sum = 0;
    int rounds = 0;
    double mean() const { return sum / rounds; }
  };

  absl::Status start_all();
  absl::StatusOr<Usage> usage_of_all();
  void stop();

  const Options options_;
  std::vector<ChildProcess> processes_;  // the leading process first
  std::map<Work, std::map<int64_t, Rates>> rates_;
  std::set<Work> unknown_;  // kinds of rows that its program does not have
};

}  // namespace weft::bench
