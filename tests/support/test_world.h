// Runs several complete workers in one process, for tests of references, backward passes or
// optimizers.
//
// Each worker has a transport, an executor, an agent, a runtime and a driver for its references. At
// the end of a test every live worker must have let go of everything: no value, reference or call
// may be left. The same holds for contexts, passes and recorded sends, if attach_autograd.h gave
// the workers distributed autograd. The test fails if something is left after 20 s.
//
// Thread safety: the workers may be used from any thread; the other methods are for the test's
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/async/executor.h"
#include "weft/async/future.h"
#include "weft/base/clock.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/worker_runtime.h"
#include "weft/rref/rref_driver.h"
#include "weft/tests/support/agent_world.h"
#include "weft/tests/support/eventually.h"

namespace weft::testing {

class TestWorld {
 public:
  struct Node {
    WorkerInfo info;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<ThreadExecutor> executor;
    std::unique_ptr<rpc_internal::Agent> agent;
    std::shared_ptr<rpc_internal::WorkerRuntime> runtime;
    std::shared_ptr<rref_internal::RRefDriver> references;
    // Set by Options::make_autograd. It is stopped before the references are closed.
    std::shared_ptr<AutogradHook> autograd;
    std::function<void()> stop_autograd;         // set with it; runs before the agent stops
    std::function<std::string()> autograd_left;  // set with it; what it holds, "" for nothing
    bool killed = false;
  };
  struct Options {
    TransportKind kind = TransportKind::kInproc;
    size_t workers = 2;
    // Gives a worker its distributed autograd before its agent starts. Null: no autograd.
    std::function<std::shared_ptr<AutogradHook>(Node& node)> make_autograd = {};
  };

  explicit TestWorld(Options options)
      : wires_(clock_, {.name = "wires"}), network_(clock_, wires_) {
    absl::StatusOr<std::shared_ptr<const Registry>> registry = RegistryBuilder().build();
    EXPECT_TRUE(registry.ok()) << registry.status();
    for (size_t i = 0; i < options.workers; ++i) add(options, *registry);
    std::vector<WorkerInfo> members;
    for (auto& node : nodes_) members.push_back(node->info);
    for (auto& node : nodes_) EXPECT_TRUE(node->agent->start(members).ok());
  }
  TestWorld(TransportKind kind, size_t workers) : TestWorld(Options{kind, workers}) {}

  ~TestWorld() { end(); }
  // Stops the workers; the destructor calls it too. An object that outlives the workers, such as a
  // promise that a handler left, may be destroyed as long as this TestWorld exists.
  void end() {
    if (std::exchange(ended_, true)) return;
    if (check_at_end_) expect_nothing_left();
    for (auto& node : nodes_) {
      if (node->stop_autograd) node->stop_autograd();
    }
    for (auto& node : nodes_) node->agent->stop();
    for (auto& node : nodes_) node->references->close();
    for (auto& node : nodes_) node->executor->stop();
    wires_.stop();
  }

  Node& node(size_t i) { return *nodes_[i]; }
  WorkerId id(size_t i) const { return nodes_[i]->info.id; }
  rref_internal::OwnershipGauges gauges(size_t i) { return nodes_[i]->references->gauges(); }

  // For a CallScopeGuard: makes worker i this thread's worker.
  CallScope scope(size_t i) {
    CallScope scope;
    scope.runtime = nodes_[i]->runtime;
    return scope;
  }

  // Acts as if the process had died and all other workers had declared it dead.
  void kill(size_t i) {
    Node& dead = *nodes_[i];
    dead.killed = true;
    network_.kill(dead.info.address);
    dead.transport->stop();
    for (auto& node : nodes_) {
      if (!node->killed) {
        node->agent->declare_dead(dead.info.id, absl::UnavailableError("the test killed it"));
      }
    }
  }

  // For tests that leave something on purpose.
  void allow_leftovers() { check_at_end_ = false; }

  void expect_nothing_left() {
    for (auto& node : nodes_) {
      if (node->killed) continue;
      EXPECT_TRUE(eventually([&] { return is_empty(*node); }))
          << node->info.name << " keeps: " << leftovers(*node);
    }
  }

 private:
  static bool is_empty(Node& node) {
    const rref_internal::OwnershipGauges g = node.references->gauges();
    const AgentInfo info = node.agent->info();
    return g.owners + g.forks + g.users + g.pending_users + g.pending_children + g.tombstones +
                   g.parked_fetches + g.parked_forks + info.pending_calls + info.running_calls ==
               0 &&
           node.references->drained() && (!node.autograd_left || node.autograd_left().empty());
  }
  static std::string leftovers(Node& node) {
    const rref_internal::OwnershipGauges g = node.references->gauges();
    const AgentInfo info = node.agent->info();
    std::string text =
        absl::StrCat("owners ", g.owners, ", forks ", g.forks, ", users ", g.users, ", pending ",
                     g.pending_users, ", children ", g.pending_children, ", tombstones ",
                     g.tombstones, ", fetches ", g.parked_fetches, ", parked ", g.parked_forks,
                     ", calls ", info.pending_calls, ", running ", info.running_calls);
    for (const rref_internal::Leak& leak : node.references->leaks()) {
      absl::StrAppend(&text, "\n  ", leak.to_string());
    }
    if (node.autograd_left) absl::StrAppend(&text, "\n  ", node.autograd_left());
    return text;
  }

  void add(const Options& options, const std::shared_ptr<const Registry>& registry) {
    auto node = std::make_unique<Node>();
    if (options.kind == TransportKind::kInproc) {
      node->transport = std::make_unique<InprocTransport>(network_);
    } else {
      node->transport = std::make_unique<GrpcTransport>(clock_);
    }
    EXPECT_TRUE(node->transport->listen().ok());
    const auto index = static_cast<uint32_t>(nodes_.size());
    node->info = {{index, 1}, absl::StrCat("w", index), node->transport->address()};
    node->executor = std::make_unique<ThreadExecutor>(clock_, ThreadExecutorOptions{});
    rpc_internal::AgentOptions agent;
    agent.group = "test";
    agent.self = node->info;
    node->agent =
        std::make_unique<rpc_internal::Agent>(agent, *node->transport, clock_, *node->executor);
    node->runtime = std::make_shared<rpc_internal::WorkerRuntime>(
        *node->agent, *node->executor, clock_, registry,
        rpc_internal::RuntimeOptions{std::chrono::seconds(20), {}});
    node->references = std::make_shared<rref_internal::RRefDriver>(*node->agent, *node->executor);
    if (options.make_autograd) node->autograd = options.make_autograd(*node);
    node->runtime->set_hooks(node->references.get(), node->autograd.get());
    node->runtime->attach();
    node->references->attach(node->runtime);
    nodes_.push_back(std::move(node));
  }

  SystemClock clock_;
  ThreadExecutor wires_;
  InprocNetwork network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  bool ended_ = false;
  bool check_at_end_ = true;
};

}  // namespace weft::testing
