// Runs several agents in one process, connected by the transport that a test chooses.
//
// The constructor makes the agents. A test sets its handlers and then calls start(). RuntimeWorld
// builds on this class; WorkerWorld shares its network (Wires).
//
// Thread safety: call() and last_call() from one thread only; the agents from any thread.
// Lifetime: the destructor stops the agents; handlers must live until then, or until stop_agents().
// Errors: a failed listen or start fails the test.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "weft/async/executor.h"
#include "weft/async/future.h"
#include "weft/base/clock.h"
#include "weft/rpc/session/agent.h"
#include "weft/rpc/transport/inproc_transport.h"

namespace weft::testing {

// The transports over which tests run, as test parameters. kFallback is shared memory with gRPC
// behind it, as workers have it. The threads of the spinning kinds hardly ever sleep; a fixture
// that does not know them runs the plain ones.
enum class TransportKind {
  kInproc,
  kGrpc,
  kGrpcSpinning,
  kGrpcTls,    // mutual TLS
  kGrpcLocal,  // unix sockets
  kSameHost,
  kSameHostSpinning,
  kFallback,
};
std::string to_string(TransportKind kind);

// The in-process network of one world. Its transports share it, because a worker that leaves may
// hold the last one.
struct Wires {
  SystemClock clock;
  ThreadExecutor executor{clock, {.name = "wires", .threads = 2}};
  InprocNetwork network{clock, executor};
  ~Wires() { executor.stop(); }
};
using WiresPtr = std::shared_ptr<Wires>;

// Returns a transport over these wires, over gRPC on loopback, or over shared memory.
std::unique_ptr<Transport> make_transport(TransportKind kind, const WiresPtr& wires);

class AgentWorld {
 public:
  AgentWorld(TransportKind kind, size_t workers, rpc_internal::CreditWindow credit = {},
             Nanoseconds connect_timeout = std::chrono::seconds(10));
  ~AgentWorld() { stop(); }
  AgentWorld(const AgentWorld&) = delete;
  AgentWorld& operator=(const AgentWorld&) = delete;

  // Call this before handlers are destroyed that do not outlive this object.
  void stop_agents();
  // Stops the agents, their executors and the wires, in this order. The destructor calls it too.
  void stop();

  // Starts all agents. Call it after the handlers are set.
  void start();
  // Starts one agent. Its calls to agents that have not started wait until they have.
  void start(size_t i);

  rpc_internal::Agent& agent(size_t i) { return *nodes_.at(i)->agent; }
  ThreadExecutor& executor(size_t i) { return *nodes_.at(i)->executor; }
  WorkerId id(size_t i) const { return nodes_.at(i)->info.id; }
  const std::string& name(size_t i) const { return nodes_.at(i)->info.name; }  // "w0", "w1", ...
  const std::string& address(size_t i) const { return nodes_.at(i)->info.address; }
  InprocNetwork& network() { return wires_->network; }
  SystemClock& clock() { return wires_->clock; }

  // Acts as if the process had died: it says no goodbye, and nobody can reach it any more.
  void kill(size_t i);

  // Calls with the name "test". The future gets the reply, or the error of the call.
  Future<Frame> call(size_t from, size_t to, Frame frame,
                     Timeout timeout = std::chrono::seconds(20));
  CallId last_call() const { return last_call_; }

 private:
  struct Node {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<ThreadExecutor> executor;
    std::unique_ptr<rpc_internal::Agent> agent;
    WorkerInfo info;
  };

  const WiresPtr wires_ = std::make_shared<Wires>();
  std::vector<std::unique_ptr<Node>> nodes_;
  CallId last_call_;
};

// A frame with a body and, if `payload` is not 0, one payload block of so many bytes in a fixed
// pattern.
Frame frame_of(std::string body, size_t payload = 0);

}  // namespace weft::testing
