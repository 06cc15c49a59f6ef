// A process that the driver has started, and the channel to it.
//
// Thread safety: one thread at a time.
// Lifetime: the destructor waits until the process has ended, and kills it when it does not obey;
// tell it to quit first.
// Blocking: spawn() does not wait for the process; ask() waits for its answer, the destructor for
// its end, 5 s at most.
// Errors: NotFound and the like when there is no such program; else those of Channel, and of the
// answer.
#pragma once

#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/bench/processes/channel.h"

namespace weft::bench {

class ChildProcess {
 public:
  // The program's path, then its arguments. The far end of the channel is its kDriverSocket.
  static absl::StatusOr<ChildProcess> spawn(std::vector<std::string> words);

  ChildProcess(ChildProcess&& other) noexcept
      : id_(std::exchange(other.id_, 0)), channel_(std::move(other.channel_)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // Sends the command and waits for the answer.
  absl::StatusOr<nlohmann::json> ask(const nlohmann::json& command, double seconds);
  absl::Status tell(const nlohmann::json& command) { return channel_.send(command); }
  // The answer to what it was told.
  absl::StatusOr<nlohmann::json> answer(double seconds);

  const Channel& channel() const { return channel_; }
  void signal(int signal);

 private:
  ChildProcess(pid_t id, Channel channel) : id_(id), channel_(std::move(channel)) {}

  pid_t id_;  // 0: moved away
  Channel channel_;
};

// The descriptor under which a child finds its end of the channel.
inline constexpr int kDriverSocket = 3;

}  // namespace weft::bench
