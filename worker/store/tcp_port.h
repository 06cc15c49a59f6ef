// Opens and probes TCP ports. Errors name host and port, and c10d gets only ports that work.
//
// c10d's own attempts log noise, retry only once a second, and hang on a port that never answers.
// Thread safety: all functions may be called from any thread.
// Blocking: wait_until_reachable, and the look-up of host names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft::worker_internal {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void close();

 private:
  int fd_ = -1;
};

struct ListeningPort {
  Descriptor socket;  // close-on-exec
  uint16_t port = 0;
};

// Whether the host is "localhost" or a literal loopback address.
bool is_loopback_name(const std::string& host);

// The address of this machine's interface that reaches `host`; IPv6 in brackets. nullopt: the host
// is not known, there is no way to it, or it means this machine by a loopback address.
std::optional<std::string> address_towards(const std::string& host, uint16_t port);

// Listens on `port` (0: any free one). If the host is a literal loopback address or "localhost", it
// binds that address only. Any other host binds all interfaces, because its name may mean another
// address on other machines.
// Errors: AlreadyExists (port in use), NotFound (unknown host), Unavailable.
absl::StatusOr<ListeningPort> listen_on(const std::string& host, uint16_t port);

// Tries until something accepts connections there, or until `timeout`. An unknown host is tried
// again too, because a cluster's name service may be late. DeadlineExceeded: the text has the last
// reason.
absl::Status wait_until_reachable(const std::string& host, uint16_t port, absl::Duration timeout);

}  // namespace weft::worker_internal
