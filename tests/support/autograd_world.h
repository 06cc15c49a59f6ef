// Runs several workers with distributed autograd in one process, without a rendezvous or a
// launcher.
//
// The destructor fails the test if a live worker still holds a context, a pass, a recorded send or
// a timer after 20 s.
//
// Thread safety: the workers may be used from any thread; `kill` and `allow_leftovers` are for the
// test's own thread.
// Lifetime: the observers and the HeldTimers of the options outlive this object.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/dist_autograd/autograd_driver.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/graph/leaf_observer.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/agent_world.h"
#include "weft/tests/support/autograd_left.h"

namespace weft::testing {

// Tells the machine's time, but runs its timers only when fire() is called.
//
// Thread safety: all methods may be called from any thread.
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
  // Runs all timers that are due within `span` from now, on this thread and without the lock.
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
    TransportKind kind = TransportKind::kInproc;
    std::map<size_t, LeafObserver*> observers = {};  // by worker
    HeldTimers* clock = nullptr;                     // of drivers, runtimes; null: the machine's
    bool started = true;                             // false: the test calls start(i)
  };

  explicit AutogradWorld(size_t workers) : AutogradWorld(workers, Options()) {}
  AutogradWorld(size_t workers, const Options& world)
      : agents_(std::make_unique<AgentWorld>(world.kind, workers)), held_timers_(world.clock) {
    agents_->network().set_filter([this](const FrameHeader& header) {
      posts_ += header.kind == FrameKind::kPost &&
                header.function == static_cast<uint64_t>(rpc_internal::Topic::kAutograd);
      return InprocNetwork::Fate::kDeliver;
    });
    auto registry = RegistryBuilder().build();
    if (!registry.ok()) throw RpcError(registry.status());
    rpc_internal::RuntimeOptions options;
    options.default_timeout = std::chrono::seconds(20);
    Clock& clock = world.clock != nullptr ? static_cast<Clock&>(*world.clock) : agents_->clock();
    for (size_t i = 0; i < workers; ++i) {
      auto runtime = std::make_shared<rpc_internal::WorkerRuntime>(
          agents_->agent(i), agents_->executor(i), clock, *registry, options);
      const auto observer = world.observers.find(i);
      auto driver = dist_autograd_internal::AutogradDriver::attach(
          runtime, observer == world.observers.end() ? nullptr : observer->second);
      runtime->set_hooks(nullptr, driver.get());
      runtime->attach();
      nodes_.push_back({std::move(runtime), std::move(driver), /*killed=*/false});
    }
    if (world.started) agents_->start();
  }
  ~AutogradWorld() {
    if (check_at_end_) expect_nothing_left();
    for (Node& node : nodes_) node.driver->stop();
    for (size_t i = 0; i < nodes_.size(); ++i) agents_->agent(i).stop();
    agents_.reset();
  }

  const std::shared_ptr<rpc_internal::WorkerRuntime>& runtime(size_t i) {
    return nodes_[i].runtime;
  }
  dist_autograd_internal::AutogradDriver& driver(size_t i) { return *nodes_[i].driver; }
  WorkerId id(size_t i) const { return agents_->id(i); }
  size_t size() const { return nodes_.size(); }
  // Posts of autograd that all workers have sent so far. Only the inproc transport counts them.
  size_t posts() const { return posts_.load(); }
  // Starts one worker. Calls to a worker that has not started wait for it.
  void start(size_t i) { agents_->start(i); }

  // Acts as if the process had died: all other workers declare it dead.
  void kill(size_t victim) {
    agents_->kill(victim);
    nodes_[victim].killed = true;
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

  // Waits until `condition` holds; returns false if it does not hold within 20 s.
  template <class Condition>
  static bool eventually(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Checks that no worker but `except` holds anything of any context.
  ::testing::AssertionResult nothing_left(size_t except = SIZE_MAX) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (i == except) continue;
      if (eventually([&] { return autograd_left(driver(i)).empty(); })) continue;
      return ::testing::AssertionFailure()
             << "worker " << i << " still has " << autograd_left(driver(i));
    }
    return ::testing::AssertionSuccess();
  }
  // For tests that leave something on purpose.
  void allow_leftovers() { check_at_end_ = false; }

 private:
  struct Node {
    std::shared_ptr<rpc_internal::WorkerRuntime> runtime;
    std::shared_ptr<dist_autograd_internal::AutogradDriver> driver;
    bool killed = false;
  };

  // A release may wait on a timer for a message that carries it, so held timers are fired here.
  void expect_nothing_left() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].killed) continue;
      EXPECT_TRUE(eventually([&] {
        if (held_timers_ != nullptr) held_timers_->fire(std::chrono::seconds(1));
        return autograd_left(driver(i)).empty();
      })) << "at its end worker "
          << i << " keeps " << autograd_left(driver(i));
    }
  }

  std::atomic<size_t> posts_{0};
  std::unique_ptr<AgentWorld> agents_;
  HeldTimers* const held_timers_;  // null: the machine's clock runs by itself
  std::vector<Node> nodes_;
  bool check_at_end_ = true;
};

}  // namespace weft::testing
