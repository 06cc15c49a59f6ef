// Several agents in one process, over the transport that a test chooses.
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

  // For whoever set handlers that end before this world.
  void stop_agents() {
    for (auto& node : nodes_) node->agent->stop();
  }

  // After handlers were set.
  void start() {
    for (size_t i = 0; i < nodes_.size(); ++i) start(i);
  }
  // One alone: what it sends to others waits until they have started, too.
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

  // As if the process had died: no goodbye.
  void kill(size_t i) {
    network_.kill(nodes_[i]->info.address);
    nodes_[i]->transport->stop();
  }

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
