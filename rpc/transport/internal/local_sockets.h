// Accepts and dials the connections of gRPC within one host, over unix sockets with abstract names.
//
// A connection has two descriptors at each end. While it hangs, gRPC keeps the frames that it
// writes.
//
// gRPC itself would not ask whose process the far end is. And it would wait for ever for a far end
// that is stopped and takes no more bytes: TCP has a timeout for that (kGiveUpArguments,
// grpc_handshake.h), unix sockets have none. So this object makes the sockets, checks the far ends
// (shm/local_socket.h), and keeps a second descriptor of each connection until it is closed. `stop`
// shuts these down.
//
// Thread safety: all methods may be called from any thread, but `listen` only once before others.
// Lifetime: the clock must outlive this object. No callback runs after `stop`.
// Errors: `listen` returns ResourceExhausted or Internal if the system lacks something. `connect`
// returns:
//
// - Unavailable: nobody listens there, or `stop` was called.
//
// - FailedPrecondition: another user's process listens there.
//
// - Aborted: too many dial at once. Dial again.
//
// - InvalidArgument: it is no address of this kind.
//
// - ResourceExhausted, Internal: the system lacks something.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/shm/file_descriptor.h"
#include "weft/shm/local_socket.h"
#include "weft/shm/watcher.h"

namespace weft::rpc_internal {

// An address begins with this, and the name of a listener follows.
inline constexpr std::string_view kLocalScheme = "unix:";
bool is_local(std::string_view address);

class LocalSockets {
 public:
  // Runs on the watcher's thread and takes the ownership of the descriptor. It must not block.
  using Accept = std::function<void(FileDescriptor connection)>;

  explicit LocalSockets(Clock& clock) : clock_(clock) {}
  ~LocalSockets() { stop(); }

  absl::Status listen(Accept accept);
  // Where other processes of this host can dial. Valid after `listen`.
  std::string address() const;
  absl::StatusOr<FileDescriptor> connect(const std::string& address);
  // Accepts and connects no more, and shuts down all connections that are left. Idempotent.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // On the watcher's thread.
  void watch_listener();
  void accept_some();
  void pause(const absl::Status& why);
  // Hands a new connection to gRPC.
  absl::Status hand_over(FileDescriptor& connection);
  bool watch_end(int descriptor);
  void forget(int descriptor) ABSL_LOCKS_EXCLUDED(mutex_);
  // On any thread. Keeps a second descriptor of the connection and returns its number.
  absl::StatusOr<int> keep(const FileDescriptor& connection) ABSL_LOCKS_EXCLUDED(mutex_);

  Clock& clock_;
  std::string name_;
  Accept accept_;

  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, FileDescriptor> kept_ ABSL_GUARDED_BY(mutex_);
  // Used only by the watcher's thread, and after it has ended.
  std::optional<LocalListener> listener_;
  std::optional<TimerId> pause_;
  TimePoint next_warning_ = TimePoint::min();
  FileDescriptor accepted_;  // and not handed over yet, because the system lacked something
  // Shared with timers, because one may be running when it is cancelled. Last: it uses the above.
  const std::shared_ptr<Watcher> watcher_ = std::make_shared<Watcher>();
};

}  // namespace weft::rpc_internal
