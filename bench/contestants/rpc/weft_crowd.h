// The parts that Weft's crowds share: a leading worker that opens the store, and a member that only
// serves.
//
// Thread safety, blocking and errors: those of Leader and Member.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "weft/bench/contestants/crowd.h"
#include "weft/bench/contestants/rpc/weft_member.h"
#include "weft/worker/worker_options.h"

namespace weft::bench {

// Returns the options of a rank; rank 0 leads. The caller fills in rank, world size and store.
using OptionsOfRank = std::function<WorkerOptions(int rank)>;

// The worker and the store of a leading process. Keep it for as long as the Leader that uses it.
class CrowdDoor {
 public:
  explicit CrowdDoor(OptionsOfRank options) : options_(std::move(options)) {}

  absl::StatusOr<std::string> listen();
  absl::Status join(int members);
  void close();

 private:
  const OptionsOfRank options_;
  WeftMember member_;
};

std::unique_ptr<Member> serving_member(OptionsOfRank options);

}  // namespace weft::bench
