#include "weft/tests/support/runtime_world.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/autograd_driver.h"
#include "weft/rpc/registry.h"
#include "weft/rref/rref_driver.h"

namespace weft::testing {
namespace {

using dist_autograd_internal::AutogradDriver;
using rref_internal::RRefDriver;

// Both return "" if nothing is held.
std::string left_of_references(const RRefDriver& driver, const AgentInfo& info) {
  const rref_internal::OwnershipGauges g = driver.gauges();
  if (g.owners + g.forks + g.users + g.pending_users + g.pending_children + g.tombstones +
              g.parked_fetches + g.parked_forks + info.pending_calls + info.running_calls ==
          0 &&
      driver.drained()) {
    return "";
  }
  std::string text =
      absl::StrCat("owners ", g.owners, ", forks ", g.forks, ", users ", g.users, ", pending ",
                   g.pending_users, ", children ", g.pending_children, ", tombstones ",
                   g.tombstones, ", fetches ", g.parked_fetches, ", parked ", g.parked_forks,
                   ", calls ", info.pending_calls, ", running ", info.running_calls);
  for (const rref_internal::Leak& leak : driver.leaks()) {
    absl::StrAppend(&text, "\n  ", leak.to_string());
  }
  return text;
}

std::string left_of_autograd(const AutogradDriver& driver) {
  const AutogradDriver::Gauges g = driver.gauges();
  if (g.contexts + g.passes + g.sends + g.timers == 0) return "";
  return absl::StrCat("\n  ", g.contexts, " contexts, ", g.passes, " passes, ", g.sends, " sends, ",
                      g.timers, " timers");
}

}  // namespace

RuntimeWorld::RuntimeWorld(const Options& options)
    : agents_(options.kind, options.workers), timers_(options.timers) {
  if (options.autograd) {
    agents_.network().set_filter([this](const FrameHeader& header) {
      posts_ += header.kind == FrameKind::kPost &&
                header.function == static_cast<uint64_t>(rpc_internal::Topic::kAutograd);
      return InprocNetwork::Fate::kDeliver;
    });
  }
  const absl::StatusOr<std::shared_ptr<const Registry>> registry = RegistryBuilder().build();
  if (!registry.ok()) throw RpcError(registry.status());
  for (size_t i = 0; i < options.workers; ++i) add(options, *registry);
  if (options.started) agents_.start();
}

RuntimeWorld::RuntimeWorld(TransportKind kind, size_t workers)
    : RuntimeWorld(Options{.kind = kind, .workers = workers}) {}

void RuntimeWorld::add(const Options& options, const std::shared_ptr<const Registry>& registry) {
  const size_t i = nodes_.size();
  Clock& clock = timers_ != nullptr ? static_cast<Clock&>(*timers_) : agents_.clock();
  rpc_internal::RuntimeOptions runtime;
  runtime.default_timeout = std::chrono::seconds(20);
  Node node;
  node.runtime = std::make_shared<rpc_internal::WorkerRuntime>(
      agents_.agent(i), agents_.executor(i), clock, registry, runtime);
  if (options.references) {
    node.references = std::make_shared<RRefDriver>(agents_.agent(i), agents_.executor(i));
  }
  if (options.autograd) {
    const auto observer = options.observers.find(i);
    node.autograd = AutogradDriver::attach(
        node.runtime, observer == options.observers.end() ? nullptr : observer->second);
  }
  node.runtime->set_hooks(node.references.get(), node.autograd.get());
  node.runtime->attach();
  if (node.references != nullptr) node.references->attach(node.runtime);
  nodes_.push_back(std::move(node));
}

void RuntimeWorld::end() {
  if (std::exchange(ended_, true)) return;
  if (check_at_end_) {
    // A release may wait on a timer for a message that carries it.
    EXPECT_TRUE(wait_until_empty(/*fire_timers=*/timers_ != nullptr));
  }
  for (Node& node : nodes_) {
    if (node.autograd != nullptr) node.autograd->stop();
  }
  agents_.stop_agents();
  for (Node& node : nodes_) {
    if (node.references != nullptr) node.references->close();
  }
  agents_.stop();
}

rref_internal::OwnershipGauges RuntimeWorld::gauges(size_t i) { return references(i).gauges(); }

CallScope RuntimeWorld::scope(size_t i) {
  CallScope scope;
  scope.runtime = runtime(i);
  return scope;
}

void RuntimeWorld::kill(size_t i) {
  nodes_.at(i).killed = true;
  agents_.kill(i);
  for (size_t other = 0; other < nodes_.size(); ++other) {
    if (nodes_[other].killed) continue;
    agents_.agent(other).declare_dead(id(i), absl::UnavailableError("the test killed it"));
  }
}

::testing::AssertionResult RuntimeWorld::wait_until_empty(bool fire_timers) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].killed) continue;
    const bool empty = eventually([&] {
      if (fire_timers) timers_->fire(std::chrono::seconds(1));
      return left(i).empty();
    });
    if (!empty) return ::testing::AssertionFailure() << name(i) << " keeps: " << left(i);
  }
  return ::testing::AssertionSuccess();
}

std::string RuntimeWorld::left(size_t i) {
  const Node& node = nodes_[i];
  std::string text;
  if (node.references != nullptr) {
    text += left_of_references(*node.references, agents_.agent(i).info());
  }
  if (node.autograd != nullptr) text += left_of_autograd(*node.autograd);
  return text;
}

}  // namespace weft::testing
