// Connects processes of one host, so that they can hand each other memory and notice each other's
// death.
//
// The name of a listener is random, unless its creator chooses it. It is in Linux's abstract
// namespace, which belongs to the network namespace and leaves no file behind. Both ends ask the
// kernel for the other's user. They accept only processes of the same user or of root. When a
// process dies, the kernel closes its sockets, and the other end sees this at once.
//
// Thread safety: one thread at a time for each direction; closed_by_peer() from any thread.
// Blocking: connect, accept, send and receive block until their deadline.
// Errors: Unavailable (nobody listens there, or the far end is gone), PermissionDenied (another
// user's process), InvalidArgument (an invalid name, or a message outside the limits). Also
// DeadlineExceeded, ResourceExhausted (no descriptors or no memory) and Internal.
// Protocol: unix(7). By default SOCK_SEQPACKET: one receive returns exactly what one send sent. A
// socket of kind kStream is for other code (gRPC), which takes its descriptor.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/sockets/file_descriptor.h"

namespace weft {

class LocalSocket {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr size_t kMostBytes = 16384;  // in one message
  static constexpr size_t kMostDescriptors = 8;

  struct Message {
    std::string bytes;
    std::vector<FileDescriptor> descriptors;
  };

  enum class Kind { kMessages, kStream };

  static absl::StatusOr<LocalSocket> connect(const std::string& name, TimePoint deadline,
                                             Kind kind = Kind::kMessages);

  LocalSocket(LocalSocket&&) = default;
  LocalSocket& operator=(LocalSocket&&) = default;

  // `bytes` has at least one byte. The caller keeps the ownership of the descriptors.
  absl::Status send(std::string_view bytes, std::span<const int> descriptors, TimePoint deadline);
  absl::StatusOr<Message> receive(TimePoint deadline);

  // Whether the far end has closed the connection or died. It also sees the death of a process
  // whose descriptors live on in forked children, if the kernel has given a pidfd of the process.
  bool closed_by_peer() const;
  // Shuts down both directions: the far end sees the connection closed, and so do threads that wait
  // on it here.
  void shut_down();
  // The far end sees the connection closed, and can still send.
  void shut_down_sending();

  pid_t peer_process() const { return peer_; }
  // For poll(2) and epoll(7). This object keeps the ownership.
  int descriptor() const { return descriptor_.get(); }
  // The pidfd of the far end, which becomes readable when that process ends; -1 if the kernel gave
  // none, and for kStream.
  int process_descriptor() const { return process_.get(); }
  // Gives the connection's descriptor away. Nothing else of this object may be used after that.
  FileDescriptor take_descriptor() { return std::move(descriptor_); }

 private:
  friend class LocalListener;
  LocalSocket(FileDescriptor descriptor, FileDescriptor process, pid_t peer)
      : descriptor_(std::move(descriptor)), process_(std::move(process)), peer_(peer) {}
  // Makes a socket of a connection. PermissionDenied: the far end is another user's process.
  static absl::StatusOr<LocalSocket> known(FileDescriptor descriptor, Kind kind);

  FileDescriptor descriptor_;
  FileDescriptor process_;  // pidfd of the far end; invalid if the kernel did not give one
  pid_t peer_;
};

class LocalListener {
 public:
  // With a random name.
  static absl::StatusOr<LocalListener> create(
      LocalSocket::Kind kind = LocalSocket::Kind::kMessages);
  // With a name that others can know before. AlreadyExists: another process has it.
  static absl::StatusOr<LocalListener> create_named(const std::string& name,
                                                    LocalSocket::Kind kind);

  // Whether a listener can have this name: "weft-", then 1 to 64 small letters, digits and '-'.
  static bool is_name(std::string_view name);
  // The argument for connect(), also in another process. It is printable.
  const std::string& name() const { return name_; }
  // Closes connections of other users' processes and continues to wait, but not beyond the
  // deadline.
  absl::StatusOr<LocalSocket> accept(LocalSocket::TimePoint deadline);
  int descriptor() const { return descriptor_.get(); }

 private:
  LocalListener(FileDescriptor descriptor, std::string name, LocalSocket::Kind kind)
      : descriptor_(std::move(descriptor)), name_(std::move(name)), kind_(kind) {}

  FileDescriptor descriptor_;
  std::string name_;
  LocalSocket::Kind kind_;
};

}  // namespace weft
