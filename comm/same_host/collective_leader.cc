// The threads that do the work of a CollectiveGroup: threads that wait, the group's own thread, and
// threads that run callbacks.
#include <algorithm>
#include <utility>

#include "weft/async/error_text.h"
#include "weft/async/executor.h"
#include "weft/base/log.h"
#include "weft/base/thread.h"
#include "weft/comm/same_host/collective_group.h"
#include "weft/shm/wait_word.h"

namespace weft::comm_internal {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

bool CollectiveGroup::Awaited::come() const {
  if (goal.counter != nullptr && reached(goal.counter->load(), goal.number)) return true;
  return std::any_of(watches.begin(), watches.end(), [](const auto& one) { return one.moved(); });
}

// Makes progress for the group until the work is done or the deadline has passed. If `work` is
// null, stops when nothing is under way, a thread waits, or the group is destroyed. `looks` says
// whether to spin before each sleep.
void CollectiveGroup::lead(const Work* work, TimePoint deadline, bool looks) {
  Awaited awaited;
  for (;;) {
    Finished finished;
    bool over, look;
    {
      MutexLock lock(mutex_);
      while (advance_all()) {
      }
      finished.swap(finished_);
      over = work != nullptr ? work->done() || Clock::now() >= deadline
                             : nothing_under_way() || followers_ > 0 || stopping_;
      awaited.goal = goal_;
      awaited.watches.clear();
      if (!transfers_.empty()) channels_.watch(awaited.watches);
      look = looks && !over && awaited.anything() && spin_.worth_while();
      if (look) ++counts_.looked;
      if (over) {
        leading_ = false;
        moved_on_.notify_all();
        if (giving_way_) background_needed_.notify_all();
      }
    }
    tell(finished);
    if (over) return;
    if (look && look_for(awaited)) continue;
    const WaitWord::Sleeper sleeper(mesh_->mine().wake_word);
    TimePoint until = std::min(deadline, Clock::now() + options_.tick);
    {
      MutexLock lock(mutex_);
      if (advance() || advance_channels() || nothing_under_way()) continue;
      if (work != nullptr ? work->done() : followers_ > 0 || stopping_) continue;
      if (!queue_.empty()) until = std::min(until, queue_.front()->deadline_);
      ++counts_.slept;
    }
    const TimePoint asleep = Clock::now();
    bool rung;
    {
      const BlockingSection waiting;
      rung = sleeper.sleep(until);
    }
    const Nanoseconds slept = Clock::now() - asleep;
    if (awaited.come()) spin_.slept(slept);
    MutexLock lock(mutex_);
    if (!rung) ++counts_.ticked;
    // First take what ranks have left behind that are gone now.
    while (advance() || advance_channels()) {
    }
    look_around();
  }
}

// Spins. True: what is awaited has come. False: it is time to sleep.
bool CollectiveGroup::look_for(const Awaited& awaited) {
  const TimePoint start = Clock::now();
  TimePoint last = start;
  for (int looks = 1;; ++looks) {
    if (awaited.come()) {
      spin_.found(Clock::now() - start);
      return true;
    }
    pause_spinning();
    if (looks % kLooks != 0) continue;
    std::this_thread::yield();
    const TimePoint now = Clock::now();
    if (now - last > SpinPolicy::kLongBreak) {
      spin_.disturbed();
      return false;
    }
    if (now - start > spin_.limit()) break;
    last = now;
  }
  spin_.in_vain();
  return false;
}

void CollectiveGroup::drain(Nanoseconds still) {
  for (;;) {
    std::shared_ptr<Work> last;
    uint64_t before;
    {
      MutexLock lock(mutex_);
      if (nothing_under_way() || !failure_.ok()) return;
      last = queue_.empty() ? transfers_.back() : queue_.back();
      before = steps_;
    }
    if (wait(last, Clock::now() + still).ok()) continue;
    MutexLock lock(mutex_);
    if (steps_ == before) return;
  }
}

void CollectiveGroup::run_in_background() {
  uint32_t seen = 0;
  int idle = 0;
  for (;;) {
    bool at_once;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      if (caller_refused_) {
        caller_refused_ = calls_.size() > idle_callers_ && !add_caller().ok();
      }
      if (!ticking_) {
        if (caller_refused_) {
          background_needed_.wait_until(mutex_, Clock::now() + options_.tick);
        } else {
          background_needed_.wait(mutex_);
        }
        seen = operations_;
        idle = 0;
        continue;
      }
      if (urgent_ == 0) {
        const Nanoseconds patience =
            transfers_.empty() ? patience_ : std::min(patience_, kPatience);
        background_needed_.wait_until(mutex_, Clock::now() + patience);
      }
      if (stopping_) return;
      if (urgent_ > 0 && (leading_ || followers_ > 0)) {
        // A thread that waits leads, or is about to. It may stop before the urgent work is done, so
        // this thread goes on after it.
        giving_way_ = true;
        if (caller_refused_) {
          background_needed_.wait_until(mutex_, Clock::now() + options_.tick);
        } else {
          background_needed_.wait(mutex_);
        }
        giving_way_ = false;
        continue;
      }
      // For other work, the thread that started it had the time of `patience` to wait for it.
      at_once = urgent_ > 0;
      if (!at_once && (nothing_under_way() || operations_ != seen || leading_)) {
        idle = operations_ == seen && nothing_under_way() ? idle + 1 : 0;
        if (idle == kMostIdle) ticking_ = false;
        seen = operations_;
        continue;
      }
      leading_ = true;
    }
    // Spin only for urgent work. Otherwise the thread that started the work computes, and may want
    // this processor.
    lead(nullptr, TimePoint::max(), /*looks=*/at_once);
  }
}

void CollectiveGroup::tell(Finished& finished) {
  for (const std::shared_ptr<Work>& work : finished) {
    work->operation_.memory = nullptr;
    work->memory_ = nullptr;
  }
}

void CollectiveGroup::when_done(const std::shared_ptr<Work>& work, std::function<void()> then) {
  Finished finished;
  {
    MutexLock lock(mutex_);
    const absl::Status caller = callers_.empty() ? add_caller() : absl::OkStatus();
    if (caller.ok()) {
      if (work->done()) return call_soon(std::move(then));
      // Perhaps no thread waits for this work, so it is urgent for the group's own thread.
      if (work->then_.empty()) ++urgent_;
      work->then_.push_back(std::move(then));
      background_needed_.notify_all();
      return;
    }
    if (!work->done() && failure_.ok()) fail(caller);
    finished.swap(finished_);
  }
  tell(finished);
  then();
}

absl::Status CollectiveGroup::add_caller() {
  absl::StatusOr<std::thread> thread =
      start_thread("the callbacks of a process group", [this] { run_calls(); });
  if (thread.ok()) callers_.push_back(*std::move(thread));
  return thread.status();
}

void CollectiveGroup::call_soon(std::function<void()> call) {
  calls_.push_back(std::move(call));
  // An idle thread may be on its way to another call, so compare the numbers.
  if (calls_.size() <= idle_callers_ || callers_.size() == kMostCallers) {
    calls_there_.notify_all();
  } else if (!add_caller().ok()) {
    calls_there_.notify_all();  // the existing threads will run it
    caller_refused_ = true;
    background_needed_.notify_all();
  }
}

void CollectiveGroup::run_calls() {
  for (;;) {
    std::function<void()> call;
    {
      MutexLock lock(mutex_);
      ++idle_callers_;
      while (calls_.empty() && !stopping_) calls_there_.wait(mutex_);
      --idle_callers_;
      if (calls_.empty()) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    try {
      call();
    } catch (const std::exception& error) {
      log_error("a callback of a collective threw: ", without_stack(error.what()));
    }
  }
}

bool CollectiveGroup::on_own_thread() const {
  const std::thread::id here = std::this_thread::get_id();
  if (here == background_.get_id()) return true;
  MutexLock lock(mutex_);
  return std::any_of(callers_.begin(), callers_.end(),
                     [here](const std::thread& one) { return one.get_id() == here; });
}

}  // namespace weft::comm_internal
