// Carries frames between workers; knows nothing of calls, sessions or tensors.
//
// A transport may lose everything that is in flight when a connection ends. It may deliver the
// frames of one connection in any order, because bulk frames travel on streams of their own. The
// session sends again what must arrive (rpc/session/internal/session.h).
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the sink outlives the transport's `stop`; after `stop` returns no callback runs.
// Conformance: tests/rpc/transport/transport_conformance_test.cc runs over every implementation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/ids.h"
#include "weft/rpc/transport/frame.h"

namespace weft {

// The far end's own statement of its identity. Transports do not authenticate yet, so the agent
// checks it against the group's members and against the source of every frame.
struct PeerIdentity {
  std::string group;  // group prefix of the rendezvous: workers of other jobs are refused
  std::string name;
  WorkerId id;
  std::string address = {};  // where it can be dialled; not asked of whom one dials
};

// What has become of the bytes that `send` put on one stream, since the connection began.
struct StreamBytes {
  uint64_t taken = 0;
  uint64_t written = 0;  // handed to the wire; at most `taken`
};
using StreamsBytes = absl::InlinedVector<StreamBytes, 2>;

// One duplex link between two workers.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues frames, which are written in this order as far as they share a stream; never blocks.
  // False: at least one stream has ended and did not take its frames; the other streams took
  // theirs. `on_closed` follows. The payloads' memory must not change until a frame is released.
  virtual bool send(FrameBatch frames) = 0;
  bool send(FramePtr frame) {
    FrameBatch one;
    one.push_back(std::move(frame));
    return send(std::move(one));
  }
  // Ends the link after what is queued was handed to the wire; `on_closed` follows on both ends,
  // but only when the far end answers. Use `abort` where the link may hang.
  virtual void close() = 0;
  // Ends the link at once and without the far end; what is queued or on its way is lost.
  // `on_closed` follows with `reason`, which is not OK. It may run inside this call, so call it
  // without a lock. If a callback of this connection is running, `on_closed` follows it. The far
  // end is told as far as the wires still work.
  virtual void abort(absl::Status reason) = 0;
  virtual const PeerIdentity& peer() const = 0;
  // Of each stream that may carry `frame`.
  virtual StreamsBytes streams_of(const Frame& frame) const = 0;
};

using ConnectionPtr = std::shared_ptr<Connection>;  // shared by the transport and its user

// Receives connections and frames from a transport. Callbacks run on transport threads and must not
// block. For one connection they come in the order on_open, on_frames..., on_closed. on_open and
// on_closed come once. on_frames may run on several threads at once, one per stream.
class TransportSink {
 public:
  virtual ~TransportSink() = default;
  // A peer has dialled this worker. An error refuses it: the dialler's connect fails with it.
  virtual absl::Status on_accept(const PeerIdentity& peer) = 0;
  // An accepted connection is ready (dialled ones are reported by connect's callback).
  virtual void on_open(const ConnectionPtr& connection) = 0;
  // What arrived together, in order; at least one frame.
  virtual void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) = 0;
  // `reason` is OK after an orderly close by either end.
  virtual void on_closed(const ConnectionPtr& connection, absl::Status reason) = 0;
};

struct TransportLimits {
  size_t max_frame_bytes = size_t{4} << 30;  // larger frames end the connection: InvalidArgument
  size_t max_payloads = 65536;
};

class Transport {
 public:
  using ConnectCallback = absl::AnyInvocable<void(absl::StatusOr<ConnectionPtr>)>;

  virtual ~Transport() = default;
  // Takes an address. A peer that dials before `start` waits for it.
  virtual absl::Status listen() = 0;
  // Where peers can dial this worker, for the rendezvous; valid after `listen`.
  virtual std::string address() const = 0;
  // Begins to accept. `self` is what peers are told.
  virtual absl::Status start(PeerIdentity self, TransportSink* sink) = 0;
  // Dials. `callback` runs once, on a transport thread, never inside this call. It gets the
  // connection after the handshake, or an error:
  //   Unavailable         no process listens there
  //   FailedPrecondition  another worker listens there
  //   DeadlineExceeded    nothing was heard from it
  //   ResourceExhausted   this process has no file descriptor left
  //   Aborted             it cannot decide yet: dial again
  // or the error of the far end's on_accept. Frames may arrive at the sink before the callback
  // returns, but not before it runs.
  virtual void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
                       ConnectCallback callback) = 0;
  // Ends every connection and waits for running callbacks. Idempotent.
  virtual void stop() = 0;
};

}  // namespace weft
