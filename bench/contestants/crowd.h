// What a system implements to be measured with one process that leads and many that it tells what
// to do: the agent and the observers of reinforcement learning, the master and the stages of a
// pipeline.
//
// Thread safety: one thread at a time. Blocking: all methods but listen().
// Errors: Unimplemented from run() says that this contestant has no such row.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/bench/contestants/block.h"
#include "weft/bench/rows.h"

namespace weft::bench {

class Leader {
 public:
  virtual ~Leader() = default;
  // Opens the door and returns the text that join() needs, here and on the members.
  virtual absl::StatusOr<std::string> listen() = 0;
  // Returns once all have come.
  virtual absl::Status join(const std::string& address, int members) = 0;
  // About `seconds` of work, which is warmed up and checked before. `amount` is the row's, or the
  // best one: with so many members, the first ones, or in so many micro-batches.
  virtual absl::StatusOr<BlockResult> run(const Row& row, int64_t amount, double seconds) = 0;
  virtual void close() {}
};

// Does what the leader says, on threads of its own.
class Member {
 public:
  virtual ~Member() = default;
  virtual absl::Status join(const std::string& address, int member, int members) = 0;
  virtual void close() {}
};

struct CrowdContestant {
  std::string name;
  const std::vector<Row>* rows;  // that it knows
  std::function<std::unique_ptr<Leader>()> make_leader;
  std::function<std::unique_ptr<Member>()> make_member;
};

}  // namespace weft::bench
