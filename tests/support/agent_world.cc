#include "weft/tests/support/agent_world.h"

#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

#include "weft/rpc/same_host/fallback_transport.h"
#include "weft/rpc/same_host/same_host_transport.h"
#include "weft/rpc/transport/grpc_transport.h"

namespace weft::testing {
namespace {

class WiredTransport final : public Transport {
 public:
  explicit WiredTransport(WiresPtr wires) : wires_(std::move(wires)), inner_(wires_->network) {}
  absl::Status listen() override { return inner_.listen(); }
  std::string address() const override { return inner_.address(); }
  absl::Status start(PeerIdentity self, TransportSink* sink) override {
    return inner_.start(std::move(self), sink);
  }
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override {
    inner_.connect(address, expected, deadline, std::move(callback));
  }
  void stop() override { inner_.stop(); }

 private:
  const WiresPtr wires_;  // shared with the other transports; before inner_, which uses it
  InprocTransport inner_;
};

}  // namespace

std::string to_string(TransportKind kind) {
  switch (kind) {
    case TransportKind::kInproc:
      return "Inproc";
    case TransportKind::kGrpc:
      return "Grpc";
    case TransportKind::kGrpcSpinning:
      return "GrpcSpinning";
    case TransportKind::kGrpcTls:
      return "GrpcTls";
    case TransportKind::kGrpcLocal:
      return "GrpcLocal";
    case TransportKind::kSameHost:
      return "SameHost";
    case TransportKind::kSameHostSpinning:
      return "SameHostSpinning";
    case TransportKind::kFallback:
      return "GrpcFallback";
  }
  return "";
}

std::unique_ptr<Transport> make_transport(TransportKind kind, const WiresPtr& wires) {
  if (kind == TransportKind::kInproc) return std::make_unique<WiredTransport>(wires);
  if (kind == TransportKind::kGrpc || kind == TransportKind::kGrpcSpinning) {
    return std::make_unique<GrpcTransport>(wires->clock);
  }
  auto local = std::make_unique<SameHostTransport>(wires->clock);
  if (kind != TransportKind::kFallback) return local;
  return std::make_unique<FallbackTransport>(wires->clock, std::move(local),
                                             std::make_unique<GrpcTransport>(wires->clock));
}

AgentWorld::AgentWorld(TransportKind kind, size_t workers, rpc_internal::CreditWindow credit,
                       Nanoseconds connect_timeout) {
  for (size_t i = 0; i < workers; ++i) {
    auto node = std::make_unique<Node>();
    node->transport = make_transport(kind, wires_);
    EXPECT_TRUE(node->transport->listen().ok());
    node->executor = std::make_unique<ThreadExecutor>(clock(), ThreadExecutorOptions{});
    node->info = {
        {static_cast<uint32_t>(i), 1}, "w" + std::to_string(i), node->transport->address()};
    rpc_internal::AgentOptions options;
    options.group = "test";
    options.self = node->info;
    options.role = "default";
    options.credit = credit;
    options.connect_timeout = connect_timeout;
    node->agent =
        std::make_unique<rpc_internal::Agent>(options, *node->transport, clock(), *node->executor);
    nodes_.push_back(std::move(node));
  }
}

void AgentWorld::stop_agents() {
  for (auto& node : nodes_) node->agent->stop();
}

void AgentWorld::stop() {
  stop_agents();
  for (auto& node : nodes_) node->executor->stop();
  wires_->executor.stop();
}

void AgentWorld::start() {
  for (size_t i = 0; i < nodes_.size(); ++i) start(i);
}

void AgentWorld::start(size_t i) {
  std::vector<WorkerInfo> members;
  for (auto& node : nodes_) members.push_back(node->info);
  ASSERT_TRUE(nodes_[i]->agent->start(std::move(members)).ok());
}

void AgentWorld::kill(size_t i) {
  network().kill(nodes_[i]->info.address);
  nodes_[i]->transport->stop();
}

Future<Frame> AgentWorld::call(size_t from, size_t to, Frame frame, Timeout timeout) {
  Promise<Frame> promise;
  Future<Frame> future = promise.future();
  last_call_ =
      agent(from).call(id(to), std::move(frame), "test", timeout.deadline_from(clock().now()),
                       [promise = std::move(promise)](absl::StatusOr<Frame> reply) {
                         promise.set(std::move(reply));
                       });
  return future;
}

Frame frame_of(std::string body, size_t payload) {
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
