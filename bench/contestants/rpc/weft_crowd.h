// What Weft's crowds share: how the leader opens the door, and a member that only serves.
//
// Thread safety, blocking and errors: those of Leader and Member.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "weft/bench/contestants/crowd.h"
#include "weft/worker/worker.h"

namespace weft::bench {

// The options of a rank; 0 is the leader. Place and store are filled in.
using OptionsOfRank = std::function<WorkerOptions(int rank)>;

// A leader's worker and its store. An object lives as long as the leader does.
class CrowdDoor {
 public:
  explicit CrowdDoor(OptionsOfRank options) : options_(std::move(options)) {}

  absl::StatusOr<std::string> listen();
  absl::Status join(int members);
  void close();

 private:
  const OptionsOfRank options_;
  std::shared_ptr<RendezvousStore> store_;
  std::optional<Worker> worker_;
};

std::unique_ptr<Member> serving_member(OptionsOfRank options);

}  // namespace weft::bench
