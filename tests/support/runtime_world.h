// Runs several workers in one process without a rendezvous or a launcher, for tests of references,
// backward passes or optimizers.
//
// Each worker has an agent of AgentWorld, a runtime and, by the options, a driver for its
// references and distributed autograd. At the end of a test no live worker may hold anything. With
// references, no value, reference or call may be left. With autograd, no context, pass, recorded
// send or timer may be left. If something is left after 20 s, the test fails.
//
// Thread safety: the workers may be used from any thread; the other methods are for the test's
// thread.
// Lifetime: the observers and the HeldTimers of the options outlive this object.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/worker_runtime.h"
#include "weft/tests/support/agent_world.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/held_timers.h"

namespace weft {
class LeafObserver;
namespace dist_autograd_internal {
class AutogradDriver;
}
namespace rref_internal {
class RRefDriver;
struct OwnershipGauges;
}  // namespace rref_internal
}  // namespace weft

namespace weft::testing {

class RuntimeWorld {
 public:
  struct Options {
    TransportKind kind = TransportKind::kInproc;
    size_t workers = 2;
    bool references = true;
    bool autograd = false;
    std::map<size_t, LeafObserver*> observers = {};  // of autograd, by worker
    HeldTimers* timers = nullptr;                    // of runtimes, autograd; null: the machine's
    bool started = true;                             // false: the test calls start(i)
  };

  explicit RuntimeWorld(const Options& options);
  RuntimeWorld(TransportKind kind, size_t workers);
  ~RuntimeWorld() { end(); }
  // Stops the workers; the destructor calls it too. An object that outlives the workers, such as a
  // promise that a handler left, may be destroyed as long as this RuntimeWorld exists.
  void end();
  // Starts one worker. Calls to a worker that has not started wait for it.
  void start(size_t i) { agents_.start(i); }

  WorkerId id(size_t i) const { return agents_.id(i); }
  const std::string& name(size_t i) const { return agents_.name(i); }
  ThreadExecutor& executor(size_t i) { return agents_.executor(i); }
  const std::shared_ptr<rpc_internal::WorkerRuntime>& runtime(size_t i) {
    return nodes_.at(i).runtime;
  }
  rref_internal::RRefDriver& references(size_t i) { return *nodes_.at(i).references; }
  rref_internal::OwnershipGauges gauges(size_t i);  // of the references
  dist_autograd_internal::AutogradDriver& autograd(size_t i) { return *nodes_.at(i).autograd; }
  // Posts of autograd that all workers have sent so far. Only the inproc transport counts them.
  size_t autograd_posts() const { return posts_.load(); }

  // For a CallScopeGuard: makes worker i this thread's worker.
  CallScope scope(size_t i);
  // Runs `f` in the scope of worker i, without a context.
  template <class F>
  auto on(size_t i, F f) {
    CallScopeGuard guard(scope(i));
    return f();
  }

  // Acts as if the process had died and all other workers had declared it dead.
  void kill(size_t i);

  // Waits until no live worker holds anything any more, and names the worker that still does after
  // 20 s. It does not fire held timers.
  ::testing::AssertionResult nothing_left() { return wait_until_empty(/*fire_timers=*/false); }
  // For tests that leave something on purpose.
  void allow_leftovers() { check_at_end_ = false; }

 private:
  struct Node {
    std::shared_ptr<rpc_internal::WorkerRuntime> runtime;
    std::shared_ptr<rref_internal::RRefDriver> references;             // null: without
    std::shared_ptr<dist_autograd_internal::AutogradDriver> autograd;  // null: without
    bool killed = false;
  };

  void add(const Options& options, const std::shared_ptr<const Registry>& registry);
  ::testing::AssertionResult wait_until_empty(bool fire_timers);
  // Returns what worker i holds; "" for nothing.
  std::string left(size_t i);

  std::atomic<size_t> posts_{0};  // before agents_, whose network counts here
  AgentWorld agents_;
  HeldTimers* const timers_;  // null: the machine's clock runs by itself
  std::vector<Node> nodes_;
  bool ended_ = false;
  bool check_at_end_ = true;
};

// Options for tests of distributed autograd alone: the workers have no references.
inline RuntimeWorld::Options autograd_alone(size_t workers,
                                            TransportKind kind = TransportKind::kInproc) {
  return {.kind = kind, .workers = workers, .references = false, .autograd = true};
}

}  // namespace weft::testing
