// Shared parts of the tests of RRef<T>: functions and a class that every worker knows, and the
// workers.
//
// Thread safety: `kept` is guarded by `kept_mutex`. The fixture is for the test's own thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"
#include "weft/rref/rref_driver.h"
#include "weft/tests/support/runtime_world.h"

namespace rref_test {

using weft::Future;
using weft::RRef;
using weft::testing::RuntimeWorld;
using weft::testing::TransportKind;

inline int add(int a, int b) { return a + b; }
WEFT_REGISTER_FUNCTION(add);

inline int failing(int) { throw std::runtime_error("it went wrong"); }
WEFT_REGISTER_FUNCTION(failing);

// The test completes it.
inline weft::Promise<int>& later_promise() {
  static weft::Promise<int> promise(nullptr);
  return promise;
}
inline Future<int> later() { return later_promise().future(); }
WEFT_REGISTER_FUNCTION(later);

inline weft::Promise<RRef<int>>& later_rref_promise() {
  static weft::Promise<RRef<int>> promise(nullptr);
  return promise;
}
inline Future<RRef<int>> later_rref() { return later_rref_promise().future(); }
WEFT_REGISTER_FUNCTION(later_rref);

inline int read(RRef<int> value) { return value.to_here(); }
WEFT_REGISTER_FUNCTION(read);

// References that keep() stores until the test takes them. All workers of the process share them.
inline std::map<std::string, RRef<int>> kept;
inline weft::Mutex kept_mutex;
inline void keep(std::string name, RRef<int> value) {
  weft::MutexLock lock(kept_mutex);
  kept[name] = std::move(value);
}
WEFT_REGISTER_FUNCTION(keep);
inline RRef<int> take_kept(const std::string& name) {
  weft::MutexLock lock(kept_mutex);
  RRef<int> value = std::move(kept[name]);
  kept.erase(name);
  return value;
}

// Counts its live objects, and those that were destroyed outside an executor's threads.
struct Tracked {
  explicit Tracked(int v) : value(v) { ++alive; }
  Tracked(const Tracked&) = delete;
  ~Tracked() {
    --alive;
    if (weft::Executor::current() == nullptr) ++died_elsewhere;
  }
  int get() const { return value; }
  void set(int v) { value = v; }
  std::unique_ptr<Tracked> clone() const { return std::make_unique<Tracked>(value); }
  int value;
  static inline std::atomic<int> alive{0};
  static inline std::atomic<int> died_elsewhere{0};
};
inline int twice(const Tracked& tracked) { return 2 * tracked.value; }
inline void increase(Tracked& tracked, int by) { tracked.value += by; }
WEFT_REGISTER_CLASS(Tracked, weft::constructor<int>(), &Tracked::get, &Tracked::set,
                    &Tracked::clone, twice, increase);

// Workers over the transport of the test parameter.
class RRefTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  // Starts the workers and makes worker 0 this thread's worker.
  RuntimeWorld& start(size_t workers) {
    later_promise() = weft::Promise<int>(nullptr);
    later_rref_promise() = weft::Promise<RRef<int>>(nullptr);
    Tracked::alive = 0;
    Tracked::died_elsewhere = 0;
    world_ = std::make_unique<RuntimeWorld>(GetParam(), workers);
    scope_ = std::make_unique<weft::CallScopeGuard>(world_->scope(0));
    return *world_;
  }
  void stop() {
    scope_.reset();
    if (world_ != nullptr) world_->end();
    later_promise() = weft::Promise<int>(nullptr);
    later_rref_promise() = weft::Promise<RRef<int>>(nullptr);
    world_.reset();
  }
  void TearDown() override { stop(); }

 private:
  std::unique_ptr<RuntimeWorld> world_;
  std::unique_ptr<weft::CallScopeGuard> scope_;
};

}  // namespace rref_test
