#include "weft/comm/same_host/collective_group.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/async/error_text.h"
#include "weft/async/executor.h"
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
      core_(*mesh_, options.arenas),
      channels_(*mesh_),
      lookout_(options.spin) {
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
  }
  mesh_->mine().wake_word.notify();
  if (background_.joinable()) background_.join();
  callbacks_.stop();
  mesh_->leave();
}

// ---- from outside

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::start(Operation operation,
                                                              TimePoint deadline) {
  auto work = std::make_shared<Work>(deadline);
  work->operation_ = std::move(operation);
  Finished finished;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) {
      finish(work, failure_);
    } else {
      queue_.push_back(work);
      // Do the short steps now, so that the other ranks need not wait until a thread waits here.
      // Large sums are left to a thread that waits.
      while (!core_.is_long() && advance()) {
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
  auto work = std::make_shared<Work>(deadline);
  work->operation_.memory = std::exchange(message.memory, nullptr);
  message.work = work;
  Finished finished;
  {
    MutexLock lock(mutex_);
    absl::Status taken = failure_;
    if (taken.ok()) {
      try {
        if (send) {
          channels_.send(std::move(message));
        } else {
          taken = channels_.receive(std::move(message));
        }
      } catch (const std::exception& failed) {  // for example, no memory
        taken =
            absl::ResourceExhaustedError(absl::StrCat("a message: ", without_stack(failed.what())));
      }
    }
    if (!taken.ok()) {
      fail(std::move(taken));
      if (!work->done()) finish(work, failure_);
    } else {
      while (advance_channels()) {
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

void CollectiveGroup::drain(Nanoseconds still) {
  for (;;) {
    std::shared_ptr<Work> last;
    uint64_t before;
    {
      MutexLock lock(mutex_);
      if (nothing_under_way() || !failure_.ok()) return;
      last = queue_.empty() ? channels_.under_way() : queue_.back();
      before = steps();
    }
    if (wait(last, Clock::now() + still).ok()) continue;
    MutexLock lock(mutex_);
    if (steps() == before) return;
  }
}

void CollectiveGroup::when_done(const std::shared_ptr<Work>& work, std::function<void()> then) {
  const absl::Status ready = callbacks_.ready();
  Finished finished;
  {
    MutexLock lock(mutex_);
    if (ready.ok() && !work->done()) {
      // Perhaps no thread waits for this work, so it is urgent for the group's own thread.
      if (work->then_.empty()) ++urgent_;
      work->then_.push_back(std::move(then));
      background_needed_.notify_all();
      return;
    }
    if (!work->done()) fail(ready);
    finished.swap(finished_);
  }
  tell(finished);
  if (ready.ok()) {
    call_soon(std::move(then));
  } else {
    then();
  }
}

void CollectiveGroup::abort(absl::Status reason) {
  Finished finished;
  {
    MutexLock lock(mutex_);
    fail(std::move(reason));
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

bool CollectiveGroup::on_own_thread() const {
  return std::this_thread::get_id() == background_.get_id() || callbacks_.on_own_thread();
}

absl::Status CollectiveGroup::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

CollectiveGroup::Counts CollectiveGroup::counts() const {
  MutexLock lock(mutex_);
  Counts all = counts_;
  static_cast<CollectiveCore::Counts&>(all) = core_.counts();
  return all;
}

// ---- threads

// Makes progress for the group until the work is done or the deadline has passed. If `work` is
// null, stops when nothing is under way, a thread waits, or the group is destroyed. `looks` says
// whether to spin before each sleep.
void CollectiveGroup::lead(const Work* work, TimePoint deadline, bool looks) {
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
      lookout_.expect(core_.goal(), channels_);
      look = looks && !over && lookout_.worth_while();
      if (look) ++counts_.looked;
      if (over) {
        leading_ = false;
        moved_on_.notify_all();
        if (giving_way_) background_needed_.notify_all();
      }
    }
    tell(finished);
    if (over) return;
    if (look && lookout_.spin()) continue;
    const WaitWord::Sleeper sleeper(mesh_->mine().wake_word);
    TimePoint until = std::min(deadline, Clock::now() + options_.tick);
    {
      MutexLock lock(mutex_);
      if (advance() || advance_channels() || nothing_under_way()) continue;
      if (work != nullptr ? work->done() : followers_ > 0 || stopping_) continue;
      if (!queue_.empty()) until = std::min(until, queue_.front()->deadline());
      ++counts_.slept;
    }
    const TimePoint asleep = Clock::now();
    bool rung;
    {
      const BlockingSection waiting;
      rung = sleeper.sleep(until);
    }
    lookout_.slept(Clock::now() - asleep);
    MutexLock lock(mutex_);
    if (!rung) ++counts_.ticked;
    // First take what ranks have left behind that are gone now.
    while (advance() || advance_channels()) {
    }
    look_around();
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
      if (caller_refused_) caller_refused_ = !callbacks_.grow();
      if (!ticking_) {
        wait_until_needed();
        seen = core_.done();
        idle = 0;
        continue;
      }
      if (urgent_ == 0) {
        const Nanoseconds patience = channels_.idle() ? patience_ : std::min(patience_, kPatience);
        background_needed_.wait_until(mutex_, Clock::now() + patience);
      }
      if (stopping_) return;
      if (urgent_ > 0 && (leading_ || followers_ > 0)) {
        // A thread that waits leads, or is about to. It may stop before the urgent work is done, so
        // this thread goes on after it.
        giving_way_ = true;
        wait_until_needed();
        giving_way_ = false;
        continue;
      }
      // For other work, the thread that started it had the time of `patience` to wait for it.
      at_once = urgent_ > 0;
      if (!at_once && (nothing_under_way() || core_.done() != seen || leading_)) {
        idle = core_.done() == seen && nothing_under_way() ? idle + 1 : 0;
        if (idle == kMostIdle) ticking_ = false;
        seen = core_.done();
        continue;
      }
      leading_ = true;
    }
    // Spin only for urgent work. Otherwise the thread that started the work computes, and may want
    // this processor.
    lead(nullptr, TimePoint::max(), /*looks=*/at_once);
  }
}

void CollectiveGroup::wait_until_needed() {
  if (caller_refused_) {
    background_needed_.wait_until(mutex_, Clock::now() + options_.tick);
  } else {
    background_needed_.wait(mutex_);
  }
}

void CollectiveGroup::wake_background() {
  if (ticking_ || nothing_under_way()) return;
  ticking_ = true;
  background_needed_.notify_all();
}

void CollectiveGroup::tell(Finished& finished) {
  while (const std::shared_ptr<Work> work = finished.pop_front()) {
    for (std::function<void()>& then : work->then_) call_soon(std::move(then));
    work->then_.clear();
    work->operation_.memory = nullptr;
  }
}

void CollectiveGroup::call_soon(std::function<void()> call) {
  if (callbacks_.call(std::move(call))) return;
  MutexLock lock(mutex_);
  caller_refused_ = true;
  background_needed_.notify_all();
}

// ---- work under way

bool CollectiveGroup::nothing_under_way() const { return queue_.empty() && channels_.idle(); }

uint64_t CollectiveGroup::steps() const { return core_.moves() + channel_steps_; }

bool CollectiveGroup::advance_all() {
  const bool moved = advance();
  if (channels_.idle()) return moved;
  return advance_channels() || moved;
}

bool CollectiveGroup::advance() {
  if (queue_.empty() || !failure_.ok()) return false;
  Operation& operation = queue_.front()->operation_;
  absl::StatusOr<CollectiveCore::Progress> progress;
  try {
    progress = core_.advance(operation);
  } catch (const std::exception& failed) {  // for example, no memory
    progress = absl::ResourceExhaustedError(
        absl::StrCat(operation.label, ": ", without_stack(failed.what())));
  }
  if (!progress.ok()) {
    fail(progress.status());
    return true;
  }
  if (*progress == CollectiveCore::Progress::kDone) {
    std::shared_ptr<Work> work = std::move(queue_.front());
    queue_.pop_front();
    finish(std::move(work), absl::OkStatus());
  }
  return *progress != CollectiveCore::Progress::kNone;
}

bool CollectiveGroup::advance_channels() {
  if (!failure_.ok()) return false;
  absl::StatusOr<bool> moved;
  try {
    moved = channels_.advance();
  } catch (const std::exception& failed) {
    moved = absl::ResourceExhaustedError(absl::StrCat("a message: ", without_stack(failed.what())));
  }
  finish_messages();
  if (!moved.ok()) {
    fail(moved.status());
    return true;
  }
  if (*moved) ++channel_steps_;
  return *moved;
}

void CollectiveGroup::finish_messages() {
  std::deque<Channels::Done>& all = channels_.done();
  while (!all.empty()) {
    Channels::Done one = std::move(all.front());
    all.pop_front();
    one.work->peer_ = one.peer;
    finish(std::move(one.work), absl::OkStatus());
  }
}

void CollectiveGroup::finish(std::shared_ptr<Work> work, absl::Status status) {
  work->status_ = std::move(status);
  work->done_.store(true, std::memory_order_release);
  if (!work->then_.empty()) --urgent_;
  finished_.push_back(std::move(work));
  if (followers_ > 0) moved_on_.notify_all();
}

// ---- failure

// Does nothing after an earlier failure.
void CollectiveGroup::fail(absl::Status reason) {
  if (!failure_.ok()) return;
  failure_ = std::move(reason);
  core_.give_up(failure_.message());
  finish_messages();
  for (; !queue_.empty(); queue_.pop_front()) finish(std::move(queue_.front()), failure_);
  channels_.clear([this](std::shared_ptr<Work> work)
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { finish(std::move(work), failure_); });
}

void CollectiveGroup::look_around() {
  ++counts_.checked;
  look_at_messages();
  look_at_operations();
}

void CollectiveGroup::look_at_operations() {
  if (queue_.empty() || !failure_.ok()) return;
  std::vector<int> late;
  for (int other = 0; other < size(); ++other) {
    // A rank that has done its part may be gone.
    if (!core_.waits_for(other)) continue;
    if (absl::Status end = mesh_->end_of(other); !end.ok()) {
      // Look again: the rank may have moved its counter just before it went.
      if (!core_.waits_for(other)) continue;
      return fail(std::move(end));
    }
    late.push_back(other);
  }
  if (late.empty()) return;
  // The deadline of an operation that waits behind others counts too.
  const auto earliest = std::min_element(
      queue_.begin(), queue_.end(),
      [](const auto& one, const auto& other) { return one->deadline() < other->deadline(); });
  if (Clock::now() < (*earliest)->deadline()) return;
  const std::string behind = earliest == queue_.begin()
                                 ? ""
                                 : absl::StrCat(", behind ", queue_.front()->operation_.label,
                                                " and ", earliest - queue_.begin() - 1, " more,");
  fail(absl::DeadlineExceededError(
      absl::StrCat((*earliest)->operation_.label, behind, " was not done in time: rank ",
                   absl::StrJoin(late, ", "), " did not come, or was late (operation ",
                   core_.done(), " of the group)")));
}

void CollectiveGroup::look_at_messages() {
  if (channels_.idle() || !failure_.ok()) return;
  const std::vector<Channels::Waiting> all = channels_.waiting();
  for (const Channels::Waiting& one : all) {
    absl::Status end =
        one.peer == Channels::kAnyone ? mesh_->end_of_senders() : mesh_->end_of(one.peer);
    if (end.ok()) continue;
    if (advance_channels()) return;  // the last data of this rank came just now
    return fail(prepend(absl::StrCat(one.what, ": "), end));
  }
  const auto earliest = std::min_element(
      all.begin(), all.end(),
      [](const auto& one, const auto& other) { return one.deadline < other.deadline; });
  if (Clock::now() < earliest->deadline) return;
  std::vector<std::string> texts;
  for (const Channels::Waiting& one : all) texts.push_back(one.what);
  fail(absl::DeadlineExceededError(
      absl::StrCat("not done in time, among: ", absl::StrJoin(texts, "; "))));
}

}  // namespace weft::comm_internal
