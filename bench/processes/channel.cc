#include "weft/bench/processes/channel.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::bench {

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(received_, other.received_);
  return *this;
}

Channel::~Channel() {
  if (socket_ >= 0) close(socket_);
}

absl::StatusOr<std::pair<Channel, Channel>> Channel::make_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  return std::pair<Channel, Channel>(Channel(ends[0]), Channel(ends[1]));
}

absl::Status Channel::send(const nlohmann::json& message) {
  const std::string line = message.dump() + "\n";
  size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat("cannot send, errno ", errno));
    sent += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> Channel::receive(double seconds) {
  using Seconds = std::chrono::duration<double>;
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      nlohmann::json message = nlohmann::json::parse(received_.substr(0, end), nullptr, false);
      received_.erase(0, end + 1);
      if (message.is_discarded()) return absl::InternalError("received a line that is not JSON");
      return message;
    }
    int wait_ms = -1;
    if (seconds >= 0) {
      const double left = seconds - Seconds(std::chrono::steady_clock::now() - begin).count();
      wait_ms = static_cast<int>(std::max(0.0, left) * 1000);
    }
    pollfd poll_socket{socket_, POLLIN, 0};
    const int ready = poll(&poll_socket, 1, wait_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0)
      return absl::DeadlineExceededError(absl::StrCat("no answer in ", seconds, " s"));
    char buffer[4096];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the process at the far end is gone");
    received_.append(buffer, static_cast<size_t>(n));
  }
}

absl::StatusOr<size_t> Channel::wait_for_any(const std::vector<const Channel*>& channels,
                                             double seconds) {
  std::vector<pollfd> sockets;
  for (size_t i = 0; i < channels.size(); ++i) {
    if (channels[i]->received_.find('\n') != std::string::npos) return i;
    sockets.push_back({channels[i]->socket_, POLLIN, 0});
  }
  int ready = 0;
  do {
    ready = poll(sockets.data(), sockets.size(), static_cast<int>(seconds * 1000));
  } while (ready < 0 && errno == EINTR);
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (sockets[i].revents != 0) return i;
  }
  return absl::DeadlineExceededError(absl::StrCat("no answer in ", seconds, " s"));
}

nlohmann::json to_answer(const absl::Status& status) {
  nlohmann::json answer{{"code", static_cast<int>(status.code())}};
  if (!status.ok()) answer["error"] = std::string(status.message());
  return answer;
}

absl::Status status_of_answer(const nlohmann::json& answer) {
  const int code = answer.value("code", static_cast<int>(absl::StatusCode::kInternal));
  return absl::Status(static_cast<absl::StatusCode>(code), answer.value("error", ""));
}

}  // namespace weft::bench
