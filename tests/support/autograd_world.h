// Several workers with distributed autograd in one process, without names to look up or a launcher.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/internal/autograd_driver.h"
#include "weft/dist_autograd/leaf_observer.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/agent_world.h"

namespace weft::testing {

// The machine's clock, whose timers stand still until told: for tests of what timers do.
class HeldTimers final : public Clock {
 public:
  TimePoint now() override { return std::chrono::steady_clock::now(); }
  TimerId call_at(TimePoint when, Callback callback) override {
    MutexLock lock(mutex_);
    const TimerId id{when, ++last_};
    timers_.emplace(id, std::move(callback));
    return id;
  }
  bool cancel(TimerId timer) override {
    MutexLock lock(mutex_);
    return timers_.erase(timer) > 0;
  }
  // Runs all that are due within `span` from now.
  void fire(Nanoseconds span) {
    std::vector<Callback> due;
    {
      MutexLock lock(mutex_);
      const TimePoint end = now() + span;
      while (!timers_.empty() && timers_.begin()->first.when <= end) {
        due.push_back(std::move(timers_.begin()->second));
        timers_.erase(timers_.begin());
      }
    }
    for (Callback& callback : due) callback();
  }

 private:
  Mutex mutex_;
  uint64_t last_ = 0;
  std::map<TimerId, Callback> timers_;
};

class AutogradWorld {
 public:
  struct Options {
    std::map<size_t, LeafObserver*> observers = {};  // by worker
    Clock* clock = nullptr;                          // of the drivers; null: the machine's
  };

  explicit AutogradWorld(size_t workers) : AutogradWorld(workers, Options()) {}
  AutogradWorld(size_t workers, const Options& world)
      : agents_(std::make_unique<AgentWorld>(TransportKind::kInproc, workers)) {
    agents_->network().set_filter([this](const FrameHeader& header) {
      posts_ += header.kind == FrameKind::kPost &&
                header.function == static_cast<uint64_t>(internal::Topic::kAutograd);
      return InprocNetwork::Fate::kDeliver;
    });
    auto registry = RegistryBuilder().build();
    if (!registry.ok()) throw RpcError(registry.status());
    internal::RuntimeOptions options;
    options.default_timeout = std::chrono::seconds(20);
    for (size_t i = 0; i < workers; ++i) {
      auto runtime = std::make_shared<internal::WorkerRuntime>(
          agents_->agent(i), agents_->executor(i),
          world.clock != nullptr ? *world.clock : agents_->clock(), *registry, options);
      const auto observer = world.observers.find(i);
      auto driver = internal::AutogradDriver::attach(
          runtime, observer == world.observers.end() ? nullptr : observer->second);
      runtime->set_hooks(nullptr, driver.get());
      runtime->attach();
      nodes_.push_back({std::move(runtime), std::move(driver)});
    }
    agents_->start();
  }
  ~AutogradWorld() {
    for (Node& node : nodes_) node.driver->stop();
    for (size_t i = 0; i < nodes_.size(); ++i) agents_->agent(i).stop();
    agents_.reset();
  }

  const std::shared_ptr<internal::WorkerRuntime>& runtime(size_t i) { return nodes_[i].runtime; }
  internal::AutogradDriver& driver(size_t i) { return *nodes_[i].driver; }
  WorkerId id(size_t i) const { return agents_->id(i); }
  size_t size() const { return nodes_.size(); }
  size_t posts() const { return posts_.load(); }  // of autograd, sent by anyone so far

  // As if the process had died; everybody else hears of it.
  void kill(size_t victim) {
    agents_->kill(victim);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (i == victim) continue;
      agents_->agent(i).declare_dead(agents_->id(victim), absl::UnavailableError("was killed"));
    }
  }

  // Runs `f` in the scope of worker i, without a context.
  template <class F>
  auto on(size_t i, F f) {
    CallScope scope;
    scope.runtime = nodes_[i].runtime;
    CallScopeGuard guard(std::move(scope));
    return f();
  }

  // Until `condition` holds; false after 20 s.
  template <class Condition>
  static bool eventually(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // No live worker holds anything of any context.
  ::testing::AssertionResult nothing_left(size_t except = SIZE_MAX) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (i == except) continue;
      const auto empty = [&] {
        const auto gauges = driver(i).gauges();
        return gauges.contexts + gauges.passes + gauges.sends + gauges.timers == 0;
      };
      if (eventually(empty)) continue;
      const auto left = driver(i).gauges();
      return ::testing::AssertionFailure()
             << "worker " << i << " still has " << left.contexts << " contexts, " << left.passes
             << " passes, " << left.sends << " sends, " << left.timers << " timers";
    }
    return ::testing::AssertionSuccess();
  }

 private:
  struct Node {
    std::shared_ptr<internal::WorkerRuntime> runtime;
    std::shared_ptr<internal::AutogradDriver> driver;
  };

  std::atomic<size_t> posts_{0};
  std::unique_ptr<AgentWorld> agents_;
  std::vector<Node> nodes_;
};

}  // namespace weft::testing
