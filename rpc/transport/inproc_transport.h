// Connects workers of one process, for tests and simulation, and causes faults on request. Frames
// are encoded, decoded and copied as over a socket.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the clock and the executor must outlive the network, and the network its transports.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "weft/async/executor.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/rpc/transport/buffer_pool.h"
#include "weft/rpc/transport/transport.h"

namespace weft {

class InprocTransport;
class InprocConnection;

namespace rpc_internal {
struct InprocEndpoint;
}  // namespace rpc_internal

// The network between the transports. Tasks on `executor` deliver the frames of each direction of a
// connection in order. At its deadline, `clock` completes a dial that nobody has answered.
class InprocNetwork {
 public:
  InprocNetwork(Clock& clock, Executor& executor) : clock_(clock), executor_(executor) {}

  // Closes all connections between the two addresses; frames in flight on them are lost. If `b` is
  // empty, closes all connections of `a`.
  void sever(const std::string& a, const std::string& b) ABSL_LOCKS_EXCLUDED(mutex_);
  // Acts as if the process at `address` had died: its connections close, nobody can dial it any
  // more, and its own dials fail.
  void kill(const std::string& address) ABSL_LOCKS_EXCLUDED(mutex_);

  // What happens to a frame in flight.
  enum class Fate { kDeliver, kDrop, kDuplicate };
  // The network asks the filter about each frame, and about each dial with a header of kind kDial.
  // A dial that is dropped is not answered before its deadline. A null filter delivers all. The
  // filter may be called from any thread.
  using Filter = std::function<Fate(const FrameHeader& header)>;
  void set_filter(Filter filter) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class InprocTransport;
  friend class InprocConnection;
  friend struct rpc_internal::InprocEndpoint;
  struct Link;

  using EndpointPtr = std::shared_ptr<rpc_internal::InprocEndpoint>;

  std::string add(EndpointPtr endpoint) ABSL_LOCKS_EXCLUDED(mutex_);
  void remove(const std::string& address) ABSL_LOCKS_EXCLUDED(mutex_);
  EndpointPtr find(const std::string& address) ABSL_LOCKS_EXCLUDED(mutex_);
  Fate fate_of(const FrameHeader& header) ABSL_LOCKS_EXCLUDED(mutex_);

  Clock& clock_;
  Executor& executor_;
  Mutex mutex_;
  uint64_t next_address_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<std::string, EndpointPtr> endpoints_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Filter> filter_ ABSL_GUARDED_BY(mutex_);
};

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(InprocNetwork& network, TransportLimits limits = {});
  ~InprocTransport() override;

  absl::Status listen() override;
  std::string address() const override;
  absl::Status start(PeerIdentity self, TransportSink* sink) override;
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override;
  void stop() override;

 private:
  InprocNetwork& network_;
  const std::shared_ptr<rpc_internal::InprocEndpoint> endpoint_;  // shared with deliveries that run
};

}  // namespace weft
