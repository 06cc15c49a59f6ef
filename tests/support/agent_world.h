// Runs several agents in one process, connected by the transport that a test chooses.
//
// The constructor makes the agents. A test sets its handlers and then calls start().
//
// Thread safety: call() and last_call() from one thread only; the agents from any thread.
// Lifetime: the destructor stops the agents; handlers must live until then, or until stop_agents().
// Errors: a failed listen or start fails the test.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/async/executor.h"
#include "weft/async/future.h"
#include "weft/base/clock.h"
#include "weft/rpc/session/agent.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/rpc/transport/inproc_transport.h"
#include "weft/tests/support/transport_kind.h"

namespace weft::testing {

class AgentWorld {
 public:
  struct Node {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<ThreadExecutor> executor;
    std::unique_ptr<rpc_internal::Agent> agent;
    WorkerInfo info;
  };

  AgentWorld(TransportKind kind, size_t workers, rpc_internal::CreditWindow credit = {},
             Nanoseconds connect_timeout = std::chrono::seconds(10))
      : wires_(clock_, {.name = "wires", .threads = 2}), network_(clock_, wires_) {
    for (size_t i = 0; i < workers; ++i) {
      auto node = std::make_unique<Node>();
      if (kind == TransportKind::kInproc) {
        node->transport = std::make_unique<InprocTransport>(network_);
      } else {
        node->transport = std::make_unique<GrpcTransport>(clock_);
      }
      EXPECT_TRUE(node->transport->listen().ok());
      node->executor = std::make_unique<ThreadExecutor>(clock_, ThreadExecutorOptions{});
      node->info = {
          {static_cast<uint32_t>(i), 1}, "w" + std::to_string(i), node->transport->address()};
      rpc_internal::AgentOptions options;
      options.group = "test";
      options.self = node->info;
      options.credit = credit;
      options.connect_timeout = connect_timeout;
      node->agent =
          std::make_unique<rpc_internal::Agent>(options, *node->transport, clock_, *node->executor);
      nodes_.push_back(std::move(node));
    }
  }
  ~AgentWorld() {
    stop_agents();
    for (auto& node : nodes_) node->executor->stop();
    wires_.stop();
  }

  // Call this before handlers are destroyed that do not outlive this object.
  void stop_agents() {
    for (auto& node : nodes_) node->agent->stop();
  }

  // Starts all agents. Call it after the handlers are set.
  void start() {
    for (size_t i = 0; i < nodes_.size(); ++i) start(i);
  }
  // Starts one agent. Its calls to agents that have not started wait until they have.
  void start(size_t i) {
    std::vector<WorkerInfo> members;
    for (auto& node : nodes_) members.push_back(node->info);
    ASSERT_TRUE(nodes_[i]->agent->start(std::move(members)).ok());
  }

  rpc_internal::Agent& agent(size_t i) { return *nodes_[i]->agent; }
  ThreadExecutor& executor(size_t i) { return *nodes_[i]->executor; }
  WorkerId id(size_t i) const { return nodes_[i]->info.id; }
  InprocNetwork& network() { return network_; }
  const std::string& address(size_t i) const { return nodes_[i]->info.address; }
  SystemClock& clock() { return clock_; }

  // Acts as if the process had died: it says no goodbye, and nobody can reach it any more.
  void kill(size_t i) {
    network_.kill(nodes_[i]->info.address);
    nodes_[i]->transport->stop();
  }

  // Calls with the name "test". The future gets the reply, or the error of the call.
  Future<Frame> call(size_t from, size_t to, Frame frame,
                     Timeout timeout = std::chrono::seconds(20)) {
    Promise<Frame> promise;
    Future<Frame> future = promise.future();
    last_call_ =
        agent(from).call(id(to), std::move(frame), "test", timeout.deadline_from(clock_.now()),
                         [promise = std::move(promise)](absl::StatusOr<Frame> reply) {
                           promise.set(std::move(reply));
                         });
    return future;
  }
  CallId last_call() const { return last_call_; }

 private:
  SystemClock clock_;
  ThreadExecutor wires_;
  InprocNetwork network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  CallId last_call_;
};

// A frame with a body and, if `payload` is not 0, one payload block of so many bytes in a fixed
// pattern.
inline Frame frame_of(std::string body, size_t payload = 0) {
  Frame frame;
  frame.body = std::move(body);
  frame.header.value_bytes = static_cast<uint32_t>(frame.body.size());
  if (payload > 0) {
    auto block = std::make_shared<std::vector<std::byte>>(payload);
    for (size_t i = 0; i < payload; ++i) (*block)[i] = static_cast<std::byte>(i * 31 >> 3);
    frame.payloads.push_back({block->data(), payload, block});
  }
  return frame;
}

}  // namespace weft::testing
