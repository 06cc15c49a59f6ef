// The interface of a system that is measured with one leading process and many members. Examples
// are the agent and its observers, or the master and the stages of a pipeline.
//
// Thread safety: one thread at a time.
// Blocking: all methods except listen().
// Errors: Unimplemented from run() means that this contestant has no such row.
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
  // Opens a port and returns the address that join() needs, here and on the members.
  virtual absl::StatusOr<std::string> listen() = 0;
  // Returns when all members have joined.
  virtual absl::Status join(const std::string& address, int members) = 0;
  // Measures about `seconds` of work, after a warm-up and a check. `amount` is that of the row, or
  // the best one: the number of members that take part (the first ones), or of micro-batches.
  virtual absl::StatusOr<BlockResult> run(const Row& row, int64_t amount, double seconds) = 0;
  virtual void close() {}
};

// Does what the leading process tells it, on threads of its own.
class Member {
 public:
  virtual ~Member() = default;
  virtual absl::Status join(const std::string& address, int member, int members) = 0;
  virtual void close() {}
};

struct CrowdContestant {
  std::string name;
  const std::vector<Row>* rows;  // the rows that it has
  std::function<std::unique_ptr<Leader>()> make_leader;
  std::function<std::unique_ptr<Member>()> make_member;
};

}  // namespace weft::bench
