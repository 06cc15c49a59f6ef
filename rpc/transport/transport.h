// A Transport carries frames between workers. It knows nothing of calls, sessions or tensors.
//
// When a connection closes, a transport may lose all frames that are in flight. It may deliver the
// frames of one connection in any order, because large frames travel on a stream of their own. The
// session resends frames that must arrive (rpc/session/internal/session.h).
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the sink must live until `stop` has returned. After that no callback runs.
// Tests: tests/rpc/transport/transport_conformance_test.cc runs over every implementation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/ids.h"
#include "weft/rpc/transport/frame.h"

namespace weft {

namespace async_internal {
class FutureCore;
}

// Versions of the wire protocol (proto/weft.proto, docs/upgrading.md).
struct ProtocolRange {
  uint32_t oldest = 0;
  uint32_t newest = 0;
};
// Those that this program speaks.
inline constexpr ProtocolRange kProtocols = {6, 7};

// The identity that the far end claims. Only GrpcTransport with TLS proves it, and of it only the
// name and the role. The agent checks it against the group's members and against the source of
// every frame.
struct PeerIdentity {
  std::string group;  // group prefix of the rendezvous; workers of other jobs are refused
  std::string name;
  WorkerId id;
  std::string address = {};   // where it can be dialled; `connect` ignores it
  std::string security = {};  // its mode (docs/security.md), "" for auto; `connect` ignores it
  std::string role = {};      // what it may call depends on it; `connect` ignores it
  ProtocolRange protocols = kProtocols;  // of this worker itself; has no meaning for peers
};

// Counts, since a stream began, the bytes (Frame::cost) that `send` has put on it.
struct StreamBytes {
  uint64_t taken = 0;
  uint64_t written = 0;  // handed to the wire; at most `taken`
};
using StreamsBytes = absl::InlinedVector<StreamBytes, 2>;

// One duplex link between two workers.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues frames and never blocks. Frames that share a stream are written in this order. Returns
  // false if at least one stream has closed and did not take its frames; the other streams took
  // theirs, and `on_closed` follows. The payloads' memory must not change until the transport has
  // released the frame.
  virtual bool send(FrameBatch frames) = 0;
  bool send(FramePtr frame) {
    FrameBatch one;
    one.push_back(std::move(frame));
    return send(std::move(one));
  }
  // Closes the link after all queued frames were handed to the wire. `on_closed` follows at both
  // ends, but only when the far end answers. Use `abort` if the link may hang.
  virtual void close() = 0;
  // Closes the link at once and without the far end. Frames that are queued or in flight are lost.
  // `on_closed` follows with `reason`, which must not be OK. It may run inside this call, so hold
  // no lock. If a callback of this connection is running, `on_closed` runs after it. The far end
  // learns of the close if the streams still work.
  virtual void abort(absl::Status reason) = 0;
  virtual const PeerIdentity& peer() const = 0;
  // The counts of each stream that may carry `frame`.
  virtual StreamsBytes streams_of(const Frame& frame) const = 0;

  // Copies the content of a coming payload to where this connection can send it without another
  // copy. nullopt: there is no such memory, or the content is too small for it. The payload is
  // `given`. Connections of any kind can send it.
  virtual std::optional<Payload> copy_payload(const std::byte* /*data*/, size_t /*size*/) {
    return std::nullopt;
  }

  // For a thread that waits for `result`, which the reply to `call` completes: it may read this
  // reply itself, so that no other thread must wake it. If it does, this calls `accept` with the
  // reply, under a lock of the transport, and returns true. If both ends have dialled, the reply
  // may come on another connection to this peer, which `accept` gets too. So `accept` must not
  // wait, and runs no code of users. The transport runs the task that it returns, unless that is
  // null, on a thread of its own, before it reports what comes later on this connection.
  using Task = absl::AnyInvocable<void()>;
  using AcceptReply =
      absl::FunctionRef<Task(const std::shared_ptr<Connection>& connection, Frame reply)>;
  virtual bool read_reply(uint64_t /*call*/, async_internal::FutureCore& /*result*/,
                          AcceptReply /*accept*/) {
    return false;
  }
};

using ConnectionPtr = std::shared_ptr<Connection>;  // shared by the transport and its user

// Receives connections and frames from a transport.
//
// Callbacks run on transport threads and must not block. For one connection their order is on_open
// (once), on_frames (any number), on_closed (once). For a dialled connection, the callback of
// `connect` takes the place of on_open. on_frames may run on several threads at once, one for each
// stream.
class TransportSink {
 public:
  virtual ~TransportSink() = default;
  // A peer has dialled this worker. If this returns an error, the dialler's connect fails with it.
  virtual absl::Status on_accept(const PeerIdentity& peer) = 0;
  // An accepted connection is ready.
  virtual void on_open(const ConnectionPtr& connection) = 0;
  // Frames that arrived together on one stream, in order; at least one.
  virtual void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) = 0;
  // `reason` is OK after an orderly close by either end.
  virtual void on_closed(const ConnectionPtr& connection, absl::Status reason) = 0;
};

struct TransportLimits {
  size_t max_frame_bytes = size_t{4} << 30;  // larger frames close the connection: InvalidArgument
  size_t max_payloads = 65536;
};

class Transport {
 public:
  using ConnectCallback = absl::AnyInvocable<void(absl::StatusOr<ConnectionPtr>)>;

  virtual ~Transport() = default;
  // Binds the address of this worker. Peers that dial it before `start` wait for `start`.
  virtual absl::Status listen() = 0;
  // Where peers can dial this worker. Valid after `listen`; the rendezvous publishes it.
  virtual std::string address() const = 0;
  // Begins to accept connections. Peers are told `self`. Call it before `connect`.
  virtual absl::Status start(PeerIdentity self, TransportSink* sink) = 0;
  // Dials a peer. `callback` runs once, on a transport thread, never inside this call. If the
  // transport stops first, it may not run at all. Frames may arrive at the sink before the callback
  // returns, but not before it runs. It gets the connection after the handshake, or an error:
  //
  // - Unavailable: nobody listens there, or the worker there has stopped.
  //
  // - FailedPrecondition: another worker answers there.
  //
  // - DeadlineExceeded: nothing was heard of the far end.
  //
  // - ResourceExhausted: this process has no file descriptor left.
  //
  // - Aborted: the far end cannot answer yet. The caller dials again.
  //
  // - Any other error: the far end's on_accept returned it.
  virtual void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
                       ConnectCallback callback) = 0;
  // Closes all connections and waits for running callbacks. Idempotent.
  virtual void stop() = 0;

  // Memory with undefined content for a payload. If the payload is `given`, some connections send
  // it without a copy. nullopt: there is no such memory. It may outlive the transport.
  virtual std::optional<Payload> shared_memory(size_t /*bytes*/) { return std::nullopt; }
};

}  // namespace weft
