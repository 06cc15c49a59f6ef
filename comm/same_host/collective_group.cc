#include "weft/comm/same_host/collective_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/async/error_text.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"
#include "weft/shm/wait_word.h"

namespace weft::comm_internal {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

CollectiveGroup::CollectiveGroup(std::shared_ptr<Mesh> mesh, Options options)
    : mesh_(std::move(mesh)),
      options_(options),
      patience_(options.patience > Nanoseconds::zero() ? options.patience
                : std::thread::hardware_concurrency() > static_cast<unsigned>(mesh_->size())
                    ? kPatience
                    : kLongPatience),
      channels_(*mesh_),
      records_(mesh_->size()),
      sources_(mesh_->size()),
      spin_(options.spin) {
  absl::StatusOr<std::thread> thread =
      start_thread("a process group", [this] { run_in_background(); });
  if (thread.ok()) {
    background_ = *std::move(thread);
  } else {
    abort(thread.status());
  }
}

CollectiveGroup::~CollectiveGroup() {
  leave();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    background_needed_.notify_all();
    calls_there_.notify_all();
  }
  mesh_->mine().wake_word.notify();
  if (background_.joinable()) background_.join();
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
    } else {
      // Do the short steps now, so that the other ranks need not wait until a thread waits here.
      // Large sums are left to a thread that waits.
      while (!is_long() && advance()) {
      }
    }
    wake_background();
    finished.swap(finished_);
  }
  tell(finished);
  return work;
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::send(Channels::Message message,
                                                             TimePoint deadline) {
  return transfer(true, std::move(message), deadline);
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::receive(Channels::Message message,
                                                                TimePoint deadline) {
  return transfer(false, std::move(message), deadline);
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::transfer(bool send,
                                                                 Channels::Message message,
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
      // channels_ calls this with the lock held, and before the group is destroyed.
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
        channels_.send(std::move(message));
      } else {
        taken = channels_.receive(std::move(message));
      }
      if (!taken.ok()) {
        fail(std::move(taken));
      } else {
        while (advance_channels()) {
        }
      }
    }
    wake_background();
    finished.swap(finished_);
  }
  tell(finished);
  return work;
}

void CollectiveGroup::poll() {
  Finished finished;
  {
    MutexLock lock(mutex_);
    while (!leading_ && advance_all()) {
    }
    finished.swap(finished_);
  }
  tell(finished);
}

absl::Status CollectiveGroup::wait(const std::shared_ptr<Work>& work, TimePoint deadline) {
  while (!work->done()) {
    {
      MutexLock lock(mutex_);
      ++followers_;
      // Wake the thread that leads: if it is the group's own thread, it gives way.
      if (leading_) mesh_->mine().wake_word.advance();
      bool in_time = true;
      while (!work->done() && leading_ && in_time) in_time = moved_on_.wait_until(mutex_, deadline);
      --followers_;
      if (work->done() || !in_time) {
        // This thread does not lead, but the group's own thread may have given way to it.
        if (giving_way_) background_needed_.notify_all();
        if (work->done()) break;
        return absl::DeadlineExceededError("not done yet");
      }
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

void CollectiveGroup::leave() {
  for (int other = 0; other < size(); ++other) {
    if (mesh_->died(other)) abort(mesh_->end_of(other));
  }
  abort(absl::CancelledError(absl::StrCat("rank ", rank(), " has left the group")));
}

absl::Status CollectiveGroup::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

CollectiveGroup::Counts CollectiveGroup::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

// ---- work under way

bool CollectiveGroup::nothing_under_way() const { return queue_.empty() && transfers_.empty(); }

void CollectiveGroup::wake_background() {
  if (ticking_ || nothing_under_way()) return;
  ticking_ = true;
  background_needed_.notify_all();
}

bool CollectiveGroup::advance_all() {
  const bool moved = advance();
  if (transfers_.empty()) return moved;
  return advance_channels() || moved;
}

bool CollectiveGroup::advance_channels() {
  if (!failure_.ok()) return false;
  absl::StatusOr<bool> moved;
  try {
    moved = channels_.advance();
  } catch (const std::exception& failed) {
    moved = absl::ResourceExhaustedError(absl::StrCat("a message: ", without_stack(failed.what())));
  }
  if (moved.ok()) {
    if (*moved) ++steps_;
    return *moved;
  }
  fail(moved.status());
  return true;
}

// ---- success and failure

void CollectiveGroup::finish_operation() {
  ++operations_;
  move(&ControlBlock::consumed, operations_);
  // Not every operation moves these counters. They follow here, because reached() needs numbers
  // that are less than half their range apart.
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
  if (!work->then_.empty()) --urgent_;
  for (std::function<void()>& then : std::exchange(work->then_, {})) call_soon(std::move(then));
  // tell() releases what the work holds, outside of the lock.
  finished_.push_back(std::move(work));
  if (followers_ > 0) moved_on_.notify_all();
}

void CollectiveGroup::fail(absl::Status reason) {
  if (failure_.ok()) {
    failure_ = std::move(reason);
    ControlBlock& mine = mesh_->mine();
    const absl::string_view text = failure_.message();
    std::memcpy(mine.failure, text.data(), std::min(text.size(), sizeof(mine.failure) - 1));
    move(&ControlBlock::failed, 1);
    mine.wake_word.notify();
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before tensors are used again
  }
  channels_.clear();
  phase_ = Phase::kPublish;
  for (std::shared_ptr<Work>& work : std::exchange(queue_, {})) finish(std::move(work), failure_);
  for (std::shared_ptr<Work>& work : std::exchange(transfers_, {})) {
    finish(std::move(work), failure_);
  }
}

void CollectiveGroup::look_around() {
  ++counts_.checked;
  look_at_transfers();
  if (queue_.empty() || !failure_.ok() || awaited_ == nullptr) return;
  std::vector<int> late;
  for (int other = 0; other < size(); ++other) {
    // A rank that has done its part may be gone.
    if (other == rank() || reached((mesh_->block(other).*awaited_).load(), goal_.number)) continue;
    if (absl::Status end = mesh_->end_of(other); !end.ok()) {
      // Look again: the rank may have moved its counter just before it went.
      if (reached((mesh_->block(other).*awaited_).load(), goal_.number)) continue;
      return fail(std::move(end));
    }
    late.push_back(other);
  }
  if (late.empty()) return;
  // The deadline of an operation that waits behind others counts too.
  const auto earliest = std::min_element(
      queue_.begin(), queue_.end(),
      [](const auto& one, const auto& other) { return one->deadline_ < other->deadline_; });
  if (Clock::now() < (*earliest)->deadline_) return;
  const std::string behind = earliest == queue_.begin()
                                 ? ""
                                 : absl::StrCat(", behind ", queue_.front()->operation_.label,
                                                " and ", earliest - queue_.begin() - 1, " more,");
  fail(absl::DeadlineExceededError(
      absl::StrCat((*earliest)->operation_.label, behind, " was not done in time: rank ",
                   absl::StrJoin(late, ", "), " did not come, or was late (operation ", operations_,
                   " of the group)")));
}

void CollectiveGroup::look_at_transfers() {
  if (transfers_.empty() || !failure_.ok()) return;
  const std::vector<Channels::Waiting> all = channels_.waiting();
  for (const Channels::Waiting& one : all) {
    absl::Status end = one.peer == Channels::kAnyone ? end_of_all() : mesh_->end_of(one.peer);
    if (end.ok()) continue;
    if (advance_channels()) return;  // the last data of this rank came just now
    return fail(prepend(absl::StrCat(one.what, ": "), end));
  }
  const auto earliest = std::min_element(
      transfers_.begin(), transfers_.end(),
      [](const auto& one, const auto& other) { return one->deadline_ < other->deadline_; });
  if (Clock::now() < (*earliest)->deadline_) return;
  std::vector<std::string> texts;
  for (const Channels::Waiting& one : all) texts.push_back(one.what);
  fail(absl::DeadlineExceededError(
      absl::StrCat("not done in time, among: ", absl::StrJoin(texts, "; "))));
}

// Says why a receive from any rank cannot be completed; OK if it can. A rank that has died may have
// been the sender that was meant, as with MPI's wildcard receives. So one death is enough. Ranks
// that have left count only when all have left.
absl::Status CollectiveGroup::end_of_all() const {
  std::vector<std::string> ends;
  for (int other = 0; other < size(); ++other) {
    if (mesh_->died(other)) return mesh_->end_of(other);
  }
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    absl::Status end = mesh_->end_of(other);
    if (end.ok()) return end;
    ends.emplace_back(end.message());
  }
  return absl::UnavailableError(absl::StrCat("no other rank is left: ", absl::StrJoin(ends, "; ")));
}

// ---- counters

bool CollectiveGroup::all_reached(Counter ControlBlock::*counter, uint32_t goal) {
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || reached((mesh_->block(other).*counter).load(), goal)) continue;
    goal_ = {&(mesh_->block(other).*counter), goal};
    awaited_ = counter;
    return false;
  }
  return true;
}

void CollectiveGroup::move(Counter ControlBlock::*counter, uint32_t next) {
  ++steps_;
  (mesh_->mine().*counter).value.store(next, std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) mesh_->block(other).wake_word.notify();
  }
}

}  // namespace weft::comm_internal
