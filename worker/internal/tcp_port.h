// Opens and probes TCP ports with errors that name host and port, before c10d gets to see them.
//
// c10d's own attempts log noise, retry by the second and hang on a port that never answers.
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft::worker_internal {

// An open file descriptor.
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

// Listens on `port` (0: any free one). A literal loopback address or "localhost" as host binds that
// address only; any other host binds all interfaces, since its name may mean another address on
// other machines. Errors: AlreadyExists (port in use), NotFound (unknown host), Unavailable.
absl::StatusOr<ListeningPort> listen_on(const std::string& host, uint16_t port);

// Waits until something accepts connections there, trying again until `timeout`; an unknown host
// too, for a cluster's name service may be late. Errors: DeadlineExceeded, with the last reason.
absl::Status wait_until_reachable(const std::string& host, uint16_t port, absl::Duration timeout);

}  // namespace weft::worker_internal
