// Accepts the connections of gRPC, over TCP or within one host over unix sockets. It also dials
// those within one host.
//
// gRPC 1.51 accepts whoever dials, as many as dial, and keeps those that say nothing for 10 s. So
// this object accepts connections, and gives them to gRPC:
//
// - TCP: a connection that sends nothing is not given to gRPC. Until its far end has proven that it
//   belongs to the job (`mark_proven`), the connection counts against a bound
//   (unproven_connections.h). Beyond the bound, or after 20 s, one is shut down. By default only
//   the published address is bound.
//
//   Those that have sent something are given up only after 1 s, so that handshakes of many honest
//   far ends complete. Without TLS a dialler takes the end of its connection for a death. Then
//   those that have sent something are never given up to make room, and silent ones only after 1 s.
//   If none may be given up, new ones wait in the kernel's queue.
//
//   While gRPC has a connection that is not proven, this object has a second descriptor of it. If
//   gRPC closes its own first, gRPC's epoll keeps an entry until the second one is closed too. That
//   is soon: gRPC shuts the socket down, and this object waits for that.
//
// - Unix sockets with abstract names: this object checks whose process the far end is
//   (sockets/local_socket.h). It also keeps a second descriptor of each connection until that is
//   closed, and `stop` shuts these down. Otherwise gRPC would wait for ever for a far end that is
//   stopped and takes no more bytes: TCP has a timeout for that, unix sockets have none. While a
//   far end hangs, gRPC keeps the frames that it writes.
//
// Thread safety: all methods may be called from any thread, but `listen` only once before others.
// Lifetime: the clock must outlive this object. No callback runs after `stop`.
// Errors: `listen` returns InvalidArgument (not HOST:PORT), AlreadyExists (the name or the port is
// taken), NotFound (the host is unknown), Unavailable (the host is not this one, or the system
// refuses a socket), and ResourceExhausted or
// Internal (the system refuses a descriptor, a thread or memory). `connect` returns:
//
// - Unavailable: nobody listens there, or `stop` was called.
//
// - FailedPrecondition: another user's process listens there.
//
// - Aborted: too many dial at once. Dial again.
//
// - InvalidArgument: the address is not "unix:" and the name of a listener.
//
// - ResourceExhausted, Internal: the system lacks something.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/links/unproven_connections.h"
#include "weft/sockets/accept_loop.h"
#include "weft/sockets/file_descriptor.h"
#include "weft/sockets/local_socket.h"
#include "weft/sockets/tcp_port.h"
#include "weft/sockets/watcher.h"

namespace weft {

// An address within one host begins with this, and the name of a listener follows.
inline constexpr std::string_view kLocalScheme = "unix:";
bool is_local(std::string_view address);

class GrpcSockets {
 public:
  // Runs on the watcher's thread and takes the ownership of the descriptor. It must not block.
  using Accept = std::function<void(FileDescriptor connection)>;

  // `address`: HOST:PORT, where port 0 takes a free one, or "unix:" for a listener with a random
  // name, or "unix:" and a name.
  // At most `most_unproven` TCP connections are unproven, and fewer if this process may have few
  // descriptors.
  GrpcSockets(Clock& clock, std::string address, size_t most_unproven, bool tls)
      : clock_(clock),
        wanted_(std::move(address)),
        unproven_(bound(most_unproven), tls ? kWithTls : kWithoutTls) {}
  ~GrpcSockets() { stop(); }

  // Whether all connections are within this host.
  bool local() const { return is_local(wanted_); }
  // Opens TCP ports, as the functions of sockets/tcp_port.h do.
  using Listen = absl::StatusOr<std::vector<ListeningPort>> (*)(const std::string& host,
                                                                uint16_t port);
  absl::Status listen(Accept accept, Listen open = listen_on_addresses_of);
  // Where peers can dial. Valid after `listen`.
  const std::string& address() const { return address_; }
  // Only within this host.
  absl::StatusOr<FileDescriptor> connect(const std::string& address);
  // The far end of this connection belongs to the job. `peer` is gRPC's name for its address
  // (ServerContext::peer). No effect within one host, and for an unknown peer.
  void mark_proven(std::string_view peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Accepts and connects no more, and shuts down the connections that it keeps. Idempotent.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A TCP connection whose far end has proven nothing yet.
  struct Unproven {
    FileDescriptor own;  // the only one before the first byte; then a duplicate of gRPC's
    std::string peer;    // as key_of() writes it
  };

  static constexpr UnprovenConnections::Ages kWithTls = {Nanoseconds(0), std::chrono::seconds(1)};
  static constexpr UnprovenConnections::Ages kWithoutTls = {std::chrono::seconds(1),
                                                            Nanoseconds::max()};
  static size_t bound(size_t most);
  absl::Status listen_locally();
  absl::Status listen_on_tcp(Listen open);
  // On the watcher's thread.
  absl::Status accept_local();
  absl::Status accept_from(int listening);
  void receive_first(uint64_t number);
  void drop_proven() ABSL_LOCKS_EXCLUDED(mutex_);
  void drop(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  void forget_unproven(uint64_t number);
  void drop_late();
  void drop_late_in_time();
  bool watch_end(int descriptor);
  void forget(int descriptor) ABSL_LOCKS_EXCLUDED(mutex_);
  // On any thread. Keeps a second descriptor of the connection and returns its number.
  absl::StatusOr<int> keep(const FileDescriptor& connection) ABSL_LOCKS_EXCLUDED(mutex_);

  Clock& clock_;
  const std::string wanted_;
  std::string address_;
  Accept accept_;

  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, FileDescriptor> kept_ ABSL_GUARDED_BY(mutex_);  // within this host
  std::set<std::string> proven_ ABSL_GUARDED_BY(mutex_);        // the watcher does not know yet

  // Used only by the watcher's thread, and after it has ended.
  std::optional<LocalListener> listener_;
  std::vector<ListeningPort> ports_;
  std::list<AcceptLoop> loops_;
  FileDescriptor accepted_local_;        // and not given to gRPC yet: the system lacked something
  std::optional<AcceptedTcp> accepted_;  // the same over TCP
  UnprovenConnections unproven_;
  std::map<uint64_t, Unproven> connections_;      // those of unproven_
  std::multimap<std::string, uint64_t> by_peer_;  // the numbers of connections_
  uint64_t next_number_ = 1;
  std::optional<TimerId> late_;  // when the oldest of them is late
  // Shared with timers, because one may be running when it is cancelled. Last: it uses the above.
  const std::shared_ptr<Watcher> watcher_ = std::make_shared<Watcher>();
};

}  // namespace weft
