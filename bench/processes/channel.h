// Sends and receives lines of JSON between the driver and one contestant process, over one socket.
//
// Thread safety: one thread at a time.
// Lifetime: owns the socket. Not copyable.
// Errors: Unavailable (the other process is gone), DeadlineExceeded (it does not answer in time),
// Internal (a line is not JSON).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::bench {

class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}
  Channel(Channel&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), received_(std::move(other.received_)) {}
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  // Two connected ends, both closed on exec.
  static absl::StatusOr<std::pair<Channel, Channel>> make_pair();

  absl::Status send(const nlohmann::json& message);
  // Negative `seconds`: no limit.
  absl::StatusOr<nlohmann::json> receive(double seconds);

  // Waits until one channel has a message or is closed, and returns its index. `channels` must not
  // be empty.
  static absl::StatusOr<size_t> wait_for_any(const std::vector<const Channel*>& channels,
                                             double seconds);

  int socket() const { return socket_; }

 private:
  int socket_;
  std::string received_;  // the bytes after the last complete line
};

// An answer is {"code": 0, ...} or {"code": n, "error": text}.
nlohmann::json to_answer(const absl::Status& status);
absl::Status status_of_answer(const nlohmann::json& answer);

}  // namespace weft::bench
