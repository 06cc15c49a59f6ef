#include "weft/comm/internal/collective_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/executor.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/shm/wait_word.h"

namespace weft::internal {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

CollectiveGroup::CollectiveGroup(std::shared_ptr<Mesh> mesh, Options options)
    : mesh_(std::move(mesh)),
      options_(options),
      lanes_(*mesh_),
      records_(mesh_->size()),
      sources_(mesh_->size()),
      spin_(options.spin),
      background_([this] { run_in_background(); }) {}

CollectiveGroup::~CollectiveGroup() {
  abort(absl::CancelledError(absl::StrCat("rank ", rank(), " has left the group")));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    background_needed_.notify_all();
    calls_there_.notify_all();
  }
  mesh_->mine().doorbell.ring();
  background_.join();
  std::vector<std::thread> callers;
  {
    MutexLock lock(mutex_);
    callers.swap(callers_);
  }
  for (std::thread& caller : callers) caller.join();
  mesh_->leave();
}

// ---- from outside

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::start(Operation operation,
                                                              TimePoint deadline) {
  auto work = std::make_shared<Work>();
  work->operation_ = std::move(operation);
  work->deadline_ = deadline;
  Finished finished;
  {
    MutexLock lock(mutex_);
    queue_.push_back(work);
    if (!failure_.ok()) {
      fail(failure_);
    } else if (queue_.size() == 1) {
      while (advance()) {
      }  // the others need not wait until somebody waits here
    }
    wake_background();
    finished.swap(finished_);
  }
  tell(finished);
  return work;
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::send(Lanes::Message message,
                                                             TimePoint deadline) {
  return transfer(true, std::move(message), deadline);
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::receive(Lanes::Message message,
                                                                TimePoint deadline) {
  return transfer(false, std::move(message), deadline);
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::transfer(bool send, Lanes::Message message,
                                                                 TimePoint deadline) {
  auto work = std::make_shared<Work>();
  work->deadline_ = deadline;
  work->memory_ = std::exchange(message.memory, nullptr);
  Finished finished;
  {
    MutexLock lock(mutex_);
    transfers_.push_back(work);
    if (!failure_.ok()) {
      fail(failure_);
    } else {
      // Called by lanes_, with the lock held, before the group ends.
      message.done = [this, one = work.get()](int peer) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        const auto at = std::find_if(transfers_.begin(), transfers_.end(),
                                     [one](const auto& other) { return other.get() == one; });
        std::shared_ptr<Work> work = std::move(*at);
        transfers_.erase(at);
        work->peer_ = peer;
        finish(std::move(work), absl::OkStatus());
      };
      absl::Status taken;
      if (send) {
        lanes_.send(std::move(message));
      } else {
        taken = lanes_.receive(std::move(message));
      }
      if (!taken.ok()) {
        fail(std::move(taken));
      } else {
        while (advance_lanes()) {
        }
      }
    }
    wake_background();
    finished.swap(finished_);
  }
  tell(finished);
  return work;
}

absl::Status CollectiveGroup::wait(const std::shared_ptr<Work>& work, TimePoint deadline) {
  while (!work->done()) {
    {
      MutexLock lock(mutex_);
      ++followers_;
      if (leading_) mesh_->mine().doorbell.advance();  // the group's own thread gives way
      bool in_time = true;
      while (!work->done() && leading_ && in_time) in_time = moved_on_.wait_until(mutex_, deadline);
      --followers_;
      if (work->done()) break;
      if (!in_time) return absl::DeadlineExceededError("not done yet");
      leading_ = true;
    }
    lead(work.get(), deadline);
    if (!work->done() && Clock::now() >= deadline) {
      return absl::DeadlineExceededError("not done yet");
    }
  }
  return work->status();
}

void CollectiveGroup::abort(absl::Status reason) {
  Finished finished;
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) fail(std::move(reason));
    finished.swap(finished_);
  }
  tell(finished);
}

absl::Status CollectiveGroup::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

// ---- who does the work

// As the leader, until the work is done (null: until nothing is under way, or somebody waits).
void CollectiveGroup::lead(const Work* work, TimePoint deadline) {
  for (;;) {
    Finished finished;
    bool over;
    Goal goal;
    {
      MutexLock lock(mutex_);
      while (advance_all()) {
      }
      finished.swap(finished_);
      over = work != nullptr ? work->done() || Clock::now() >= deadline
                             : nothing_under_way() || followers_ > 0 || stopping_;
      goal = goal_;
      if (over) {
        leading_ = false;
        moved_on_.notify_all();
      }
    }
    tell(finished);
    if (over) return;
    if (look_for(goal)) continue;
    const WaitWord::Sleeper sleeper(mesh_->mine().doorbell);
    TimePoint until = std::min(deadline, Clock::now() + kLook);
    {
      MutexLock lock(mutex_);
      if (advance() || advance_lanes() || nothing_under_way()) continue;
      if (work != nullptr ? work->done() : followers_ > 0 || stopping_) continue;
      if (!queue_.empty()) until = std::min(until, queue_.front()->deadline_);
    }
    const TimePoint asleep = Clock::now();
    {
      const BlockingSection waiting;
      sleeper.sleep(until);
    }
    const Nanoseconds slept = Clock::now() - asleep;
    MutexLock lock(mutex_);
    if (goal_.counter != nullptr && reached(goal_.counter->load(), goal_.number)) {
      spin_.slept(slept);
    }
    // First what those have left that are gone.
    while (advance() || advance_lanes()) {
    }
    look_around();
  }
}

// True once the counter that is waited for has moved; false if it is time to sleep.
bool CollectiveGroup::look_for(const Goal& goal) {
  if (goal.counter == nullptr || !spin_.worth_while()) return false;
  const TimePoint start = Clock::now();
  TimePoint last = start;
  for (int looks = 1;; ++looks) {
    if (reached(goal.counter->load(), goal.number)) {
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

void CollectiveGroup::run_in_background() {
  uint32_t seen = 0;
  int idle = 0;
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      if (!ticking_) {
        background_needed_.wait(mutex_);
        seen = operations_;
        idle = 0;
        continue;
      }
      if (!urgent_) background_needed_.wait_until(mutex_, Clock::now() + kPatience);
      if (stopping_) return;
      // Whoever started it had time to wait for it.
      const bool at_once = std::exchange(urgent_, false) && !leading_ && !nothing_under_way();
      if (!at_once && (nothing_under_way() || operations_ != seen || leading_)) {
        idle = operations_ == seen && nothing_under_way() ? idle + 1 : 0;
        if (idle == kMostIdle) ticking_ = false;
        seen = operations_;
        continue;
      }
      leading_ = true;
    }
    lead(nullptr, TimePoint::max());
  }
}

void CollectiveGroup::tell(Finished& finished) {
  for (const std::shared_ptr<Work>& work : finished) {
    work->operation_.memory = nullptr;
    work->memory_ = nullptr;
  }
}

void CollectiveGroup::when_done(const std::shared_ptr<Work>& work, std::function<void()> then) {
  MutexLock lock(mutex_);
  if (work->done()) return call_soon(std::move(then));
  work->then_.push_back(std::move(then));
  // Nobody may wait for it in any other way.
  urgent_ = true;
  background_needed_.notify_all();
}

void CollectiveGroup::call_soon(std::function<void()> call) {
  calls_.push_back(std::move(call));
  if (idle_callers_ > 0) {
    calls_there_.notify_all();
  } else if (callers_.size() < kMostCallers) {
    callers_.emplace_back([this] { run_calls(); });
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
      log_error("a callback of a collective threw: ", error.what());
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

bool CollectiveGroup::nothing_under_way() const { return queue_.empty() && transfers_.empty(); }

void CollectiveGroup::wake_background() {
  if (ticking_ || nothing_under_way()) return;
  ticking_ = true;
  background_needed_.notify_all();
}

bool CollectiveGroup::advance_all() {
  const bool moved = advance();
  if (transfers_.empty()) return moved;
  return advance_lanes() || moved;
}

bool CollectiveGroup::advance_lanes() {
  if (!failure_.ok()) return false;
  absl::StatusOr<bool> moved = lanes_.advance();
  if (moved.ok()) return *moved;
  fail(moved.status());
  return true;
}

// ---- the end of it

void CollectiveGroup::finish_operation() {
  ++operations_;
  move(&Board::consumed, operations_);
  // These keep up, so that numbers never lie half their range apart.
  mesh_->mine().turned.value.store(operations_, std::memory_order_seq_cst);
  mesh_->mine().reduced.value.store(pieces_before_, std::memory_order_seq_cst);
  goal_ = {};
  awaited_ = nullptr;
  std::shared_ptr<Work> work = std::move(queue_.front());
  queue_.pop_front();
  finish(std::move(work), absl::OkStatus());
  phase_ = Phase::kPublish;
}

void CollectiveGroup::finish(std::shared_ptr<Work> work, absl::Status status) {
  work->status_ = std::move(status);
  work->done_.store(true, std::memory_order_release);
  for (std::function<void()>& then : std::exchange(work->then_, {})) call_soon(std::move(then));
  // What the work holds ends outside of the lock.
  finished_.push_back(std::move(work));
  if (followers_ > 0) moved_on_.notify_all();
}

void CollectiveGroup::fail(absl::Status reason) {
  if (failure_.ok()) {
    failure_ = std::move(reason);
    Board& mine = mesh_->mine();
    const absl::string_view text = failure_.message();
    std::memcpy(mine.failure, text.data(), std::min(text.size(), sizeof(mine.failure) - 1));
    move(&Board::failed, 1);
    mine.doorbell.ring();
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before tensors are used again
  }
  lanes_.clear();
  for (std::shared_ptr<Work>& work : std::exchange(queue_, {})) finish(std::move(work), failure_);
  for (std::shared_ptr<Work>& work : std::exchange(transfers_, {})) {
    finish(std::move(work), failure_);
  }
}

void CollectiveGroup::look_around() {
  look_at_transfers();
  if (queue_.empty() || !failure_.ok() || awaited_ == nullptr) return;
  std::vector<int> late;
  for (int other = 0; other < size(); ++other) {
    // Who has done its part may have gone.
    if (other == rank() || reached((mesh_->board(other).*awaited_).load(), goal_.number)) continue;
    if (absl::Status end = end_of(other); !end.ok()) {
      if (reached((mesh_->board(other).*awaited_).load(), goal_.number)) continue;
      return fail(std::move(end));
    }
    late.push_back(other);
  }
  if (late.empty()) return;
  const Work& work = *queue_.front();
  if (Clock::now() < work.deadline_) return;
  fail(absl::DeadlineExceededError(
      absl::StrCat(work.operation_.label, " was not done in time: rank ", absl::StrJoin(late, ", "),
                   " did not come, or was late (operation ", operations_, " of the group)")));
}

void CollectiveGroup::look_at_transfers() {
  if (transfers_.empty() || !failure_.ok()) return;
  const std::vector<Lanes::Waiting> all = lanes_.waiting();
  for (const Lanes::Waiting& one : all) {
    absl::Status end = one.peer == Lanes::kAnyone ? end_of_all() : end_of(one.peer);
    if (end.ok()) continue;
    if (advance_lanes()) return;  // what it has left came just now
    return fail(prepend(absl::StrCat(one.what, ": "), end));
  }
  const auto earliest = std::min_element(
      transfers_.begin(), transfers_.end(),
      [](const auto& one, const auto& other) { return one->deadline_ < other->deadline_; });
  if (Clock::now() < (*earliest)->deadline_) return;
  std::vector<std::string> texts;
  for (const Lanes::Waiting& one : all) texts.push_back(one.what);
  fail(absl::DeadlineExceededError(
      absl::StrCat("not done in time, among: ", absl::StrJoin(texts, "; "))));
}

absl::Status CollectiveGroup::end_of_all() const {
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && end_of(other).ok()) return absl::OkStatus();
  }
  return absl::UnavailableError("no other rank is left");
}

absl::Status CollectiveGroup::end_of(int rank) const {
  const Board& board = mesh_->board(rank);
  if (board.failed.load() != 0) {
    const std::string why = printable(board.failure, sizeof(board.failure));
    return absl::UnavailableError(absl::StrCat("rank ", rank, " has given up: ", why));
  }
  if (!mesh_->gone(rank)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("rank ", rank, " (process ", mesh_->process(rank), ") has died"));
}

// ---- counters

bool CollectiveGroup::all_reached(Counter Board::*counter, uint32_t goal) {
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || reached((mesh_->board(other).*counter).load(), goal)) continue;
    goal_ = {&(mesh_->board(other).*counter), goal};
    awaited_ = counter;
    return false;
  }
  return true;
}

void CollectiveGroup::move(Counter Board::*counter, uint32_t next) {
  (mesh_->mine().*counter).value.store(next, std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) mesh_->board(other).doorbell.ring();
  }
}

}  // namespace weft::internal
