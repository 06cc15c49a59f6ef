#include "weft/rpc/same_host/connection/reading.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "weft/async/executor.h"
#include "weft/async/serving_threads.h"

namespace weft::rpc_internal {

using Group = WakeBits::Group;

Reading::Reading(std::shared_ptr<WakePage> page, Nanoseconds spin, Visits visits)
    : page_(std::move(page)), visits_(std::move(visits)), spinner_(spin), caller_spinner_(spin) {}

void Reading::post(Task task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    has_tasks_.store(true, std::memory_order_seq_cst);
  }
  bits().wake(Group::kServing);
}

void Reading::run_tasks() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    has_tasks_.store(false, std::memory_order_relaxed);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) task();
}

bool Reading::arm_for(Group other) {
  bits().arm(other);
  return bits().any_pending();
}

// It does not sleep for long: a caller that has the lock and gets no processor would otherwise hide
// from peers that this thread needs one, too (rpc/membership/processor_waits.h).
void Reading::lock_visiting() {
  constexpr int kYields = 100;
  constexpr std::chrono::milliseconds kRetryLock{1};
  serving_waits_.store(true);  // a caller that finds something again and again must let it in
  for (int tries = 0; !visiting_.try_lock(); ++tries) {
    if (tries < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kRetryLock);
    }
  }
  serving_waits_.store(false);
}

// ---- The serving thread

bool Reading::work() {
  bits().disarm();
  const ServingThreads::Work work;
  lock_visiting();
  const bool tasks = has_tasks();
  if (tasks) run_tasks();
  const bool visited = bits().take_pending(visits_.serve);
  visiting_.unlock();
  bool wake = false;
  {
    MutexLock lock(mutex_);
    if (visited) policy_.served();
    // The caller may sleep already, and handlers may delay this thread's next look.
    wake = caller_reads() && arm_for(Group::kCaller);
  }
  if (wake) bits().wake(Group::kCaller);
  return tasks || visited;
}

void Reading::rest() {
  const auto something = [&] { return bits().any_pending() || has_tasks(); };
  const auto sleep_now = [&] {
    uint32_t seen = 0;
    bool others = false;
    bool idle = false;
    {
      MutexLock lock(mutex_);
      others = caller_reads();  // the pending bits are the caller's
      seen = others ? bits().word.load() : bits().arm(Group::kServing);
      idle = !has_tasks() && (others || !bits().any_pending());
    }
    if (!idle) return;
    const TimePoint until = std::chrono::steady_clock::now() + kLookAnyway;
    if (bits().sleep(seen, until, Group::kServing) || others) return;
    // A peer that sees this reader armed takes the mark back and then changes the word.
    MutexLock lock(mutex_);  // so no caller takes the mark back
    const bool lost = caller_.load() == Caller::kNone && bits().any_pending() &&
                      bits().armed.load() == 0 && bits().word.load() == seen;
    if (lost) lost_signals_.fetch_add(1, std::memory_order_relaxed);
  };
  if (caller_reads()) {
    sleep_now();
  } else {
    spinner_.wait(something, sleep_now, [&] { return caller_reads(); });
  }
}

// ---- A caller that waits

void Reading::completed() { bits().wake(Group::kCaller); }

bool Reading::begin_reading(async_internal::FutureCore& result) {
  bool wake_serving = false;
  {
    MutexLock lock(mutex_);
    // Frames that wait for the serving thread go first.
    if (closed_ || has_tasks()) return false;
    switch (caller_.load()) {
      case Caller::kNone:
        if (result.done() || !policy_.begin() || !result.listen(this)) return false;
        caller_.store(Caller::kReads);
        return true;
      case Caller::kMustStop:
        return false;
      case Caller::kReads:  // from now on the serving thread reads for both
        caller_.store(Caller::kMustStop);
        wake_serving = arm_for(Group::kServing);
    }
  }
  bits().wake(Group::kCaller);
  if (wake_serving) bits().wake(Group::kServing);
  return false;
}

void Reading::hand_over(std::vector<Task> tasks) {
  MutexLock lock(mutex_);
  for (Task& task : tasks) tasks_.push_back(std::move(task));
  has_tasks_.store(true, std::memory_order_seq_cst);
}

void Reading::end_reading(bool alone) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    const bool stopped = caller_.exchange(Caller::kNone) == Caller::kMustStop;
    policy_.end(!stopped && alone);
    wake = arm_for(Group::kServing) || has_tasks();
    caller_left_.notify_all();
  }
  if (wake) bits().wake(Group::kServing);
}

bool Reading::look(Wait& wait) {
  Awaited awaited{wait.peer, wait.call};
  absl::InlinedVector<size_t, 8> slots;
  const bool any = bits().take_pending([&](size_t slot) { slots.push_back(slot); });
  // What other peers have sent must not delay this caller.
  std::partition(slots.begin(), slots.end(),
                 [&](size_t slot) { return visits_.is_of(slot, wait.peer); });
  for (const size_t slot : slots) {
    if (!awaited.reply.has_value() && awaited.for_serving.empty() && !wait.result.done()) {
      visits_.take(slot, awaited);
    } else {
      wait.alone = false;
      bits().put_back(slot);
    }
  }
  if (!awaited.for_serving.empty()) wait.alone = false;
  if (awaited.reply.has_value()) {
    wait.accepted = true;
    Task rest = wait.accept(awaited.connection, *std::move(awaited.reply));
    if (rest != nullptr) awaited.for_serving.push_back(std::move(rest));
  }
  if (!awaited.for_serving.empty()) hand_over(std::move(awaited.for_serving));
  return any;
}

bool Reading::read_reply(WorkerId peer, uint64_t call, async_internal::FutureCore& result,
                         Connection::AcceptReply accept) noexcept {
  // A thread that runs a serving thread's task holds visiting_ perhaps, and others wait for it.
  if (ServingThreads::may_defer() || !begin_reading(result)) return false;
  const BlockingSection blocking;
  Wait wait{peer, call, result, accept};
  const auto over = [&] {
    return result.done() || wait.accepted || !wait.alone ||
           caller_.load(std::memory_order_seq_cst) == Caller::kMustStop;
  };
  const auto something = [&] { return bits().any_pending() || over(); };
  const auto sleep = [&](uint32_t seen) { bits().sleep(seen, kNever, Group::kCaller); };
  while (!over()) {
    // The serving thread arms for this one when it has unlocked. So this one must not disarm before
    // it has the lock, and it counts the wake-ups from before it tries.
    const uint32_t before = bits().word.load();
    if (serving_waits_.load() || !visiting_.try_lock()) {
      if (!over()) sleep(before);
      continue;
    }
    bits().disarm();
    const bool any = look(wait);
    visiting_.unlock();
    if (any) continue;
    caller_spinner_.wait(something, [&] {
      const uint32_t seen = bits().arm(Group::kCaller);
      if (!something()) sleep(seen);
    });
  }
  result.forget_listener();
  end_reading(wait.alone);
  if (wait.accepted) direct_replies_.fetch_add(1, std::memory_order_relaxed);
  return wait.accepted;
}

void Reading::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  if (caller_.load() == Caller::kNone) return;
  caller_.store(Caller::kMustStop);
  bits().wake(Group::kCaller);
  while (caller_.load() != Caller::kNone) caller_left_.wait(mutex_);
}

}  // namespace weft::rpc_internal
