// Connects processes of one host, so that they can hand each other memory and notice each other's
// end.
//
// A listener has a name that nobody can guess or keep: random, in Linux's abstract namespace, which
// belongs to the network namespace and leaves no file behind. Only processes of the same user, or
// root's, get through: both ends ask the kernel who the other is. The kernel closes the sockets of
// whoever dies, and the other end sees that at once.
//
// Thread safety: one thread at a time for each direction; closed_by_peer() from any thread.
// Blocking: connect, accept, send and receive, until their deadline.
// Errors: Unavailable (nobody listens there, or the far end is gone), DeadlineExceeded,
// PermissionDenied (another user's process), InvalidArgument (more than fits, or no such name),
// ResourceExhausted (no descriptors), Internal.
// Protocol: unix(7), SOCK_SEQPACKET: each send is one receive.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/shm/file_descriptor.h"

namespace weft {

class LocalSocket {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr size_t kMostBytes = 4096;  // in one message
  static constexpr size_t kMostDescriptors = 8;

  struct Message {
    std::string bytes;
    std::vector<FileDescriptor> descriptors;
  };

  static absl::StatusOr<LocalSocket> connect(const std::string& name, TimePoint deadline);

  LocalSocket(LocalSocket&&) = default;
  LocalSocket& operator=(LocalSocket&&) = default;

  // The descriptors stay the caller's. At least one byte.
  absl::Status send(std::string_view bytes, std::span<const int> descriptors, TimePoint deadline);
  absl::StatusOr<Message> receive(TimePoint deadline);

  // Whether the far end has closed it or died; also where children of its process that were only
  // forked keep its descriptors.
  bool closed_by_peer() const;
  // Ends both directions: the far end sees it closed, and so do waiters here.
  void shut_down();

  pid_t peer_process() const { return peer_; }
  int descriptor() const { return descriptor_.get(); }

 private:
  friend class LocalListener;
  LocalSocket(FileDescriptor descriptor, FileDescriptor process, pid_t peer)
      : descriptor_(std::move(descriptor)), process_(std::move(process)), peer_(peer) {}
  // Refuses another user's process.
  static absl::StatusOr<LocalSocket> known(FileDescriptor descriptor);

  FileDescriptor descriptor_;
  FileDescriptor process_;  // of the far end; none where the kernel does not tell
  pid_t peer_;
};

class LocalListener {
 public:
  static absl::StatusOr<LocalListener> create();

  // What connect() takes, also in another process; printable.
  const std::string& name() const { return name_; }
  // Connections of other users are closed and do not end the wait.
  absl::StatusOr<LocalSocket> accept(LocalSocket::TimePoint deadline);

 private:
  LocalListener(FileDescriptor descriptor, std::string name)
      : descriptor_(std::move(descriptor)), name_(std::move(name)) {}

  FileDescriptor descriptor_;
  std::string name_;
};

}  // namespace weft
