// A process that the driver has started, and the channel to it.
//
// Thread safety: one thread at a time.
// Lifetime: the destructor waits until the process has exited and kills it if it does not. Tell it
// to quit first.
// Blocking: spawn() does not wait for the process. ask() waits for its answer. The destructor waits
// for its exit, at most 5 s.
// Errors: NotFound and similar if there is no such program, otherwise those of Channel and of the
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
  // `words` are the path of the program and its arguments. The child's side of the channel is
  // kDriverSocket.
  static absl::StatusOr<ChildProcess> spawn(std::vector<std::string> words);

  ChildProcess(ChildProcess&& other) noexcept
      : id_(std::exchange(other.id_, 0)), channel_(std::move(other.channel_)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // Sends the command and waits for the answer.
  absl::StatusOr<nlohmann::json> ask(const nlohmann::json& command, double seconds);
  absl::Status tell(const nlohmann::json& command) { return channel_.send(command); }
  // Waits for the answer to an earlier tell().
  absl::StatusOr<nlohmann::json> answer(double seconds);

  const Channel& channel() const { return channel_; }
  void signal(int signal);

 private:
  ChildProcess(pid_t id, Channel channel) : id_(id), channel_(std::move(channel)) {}

  pid_t id_;  // 0: moved from
  Channel channel_;
};

// The descriptor that a child uses as its side of the channel.
inline constexpr int kDriverSocket = 3;

}  // namespace weft::bench
