#include "weft/rpc/membership/internal/member_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostGone = 1024;  // as many as the agent remembers

// The result of a wait for this worker to be gone.
absl::StatusOr<Unit> outcome_of(const MemberEvent& gone) {
  if (gone.change == MemberChange::kLeft) return Unit{};
  return prepend(
      absl::StrCat("worker '", gone.worker.name, "' (", gone.worker.id.to_string(), ") "),
      gone.reason);
}

}  // namespace

void MemberWatch::begin_with(const std::vector<WorkerInfo>& members) {
  MutexLock lock(mutex_);
  for (const WorkerInfo& member : members) {
    if (member.id != agent_.self().id) present_.emplace(member.id, member);
  }
}

bool MemberWatch::joined(WorkerId joiner) {
  {
    MutexLock lock(mutex_);
    // Under the lock, because of threads that hear of the worker at this moment. A thread that
    // finds its name may ask `when_gone` for it. A thread that reports it as gone must come later.
    if (!agent_.name_member(joiner)) return false;
    const WorkerInfo info = agent_.info_of(joiner);
    present_.emplace(joiner, info);
    publish({info, MemberChange::kJoined});
  }
  answer_live();
  return true;
}

bool MemberWatch::gone(WorkerId worker, MemberChange change, const absl::Status& reason) {
  std::vector<Gone> over;
  absl::StatusOr<Unit> outcome;
  {
    MutexLock lock(mutex_);
    const auto found = present_.find(worker);
    if (found == present_.end()) return false;
    MemberEvent event{std::move(found->second), change};
    if (change == MemberChange::kDied) event.reason = reason;
    present_.erase(found);
    publish(event);
    outcome = outcome_of(event);
    gone_.push_back(std::move(event));
    if (gone_.size() > kMostGone) gone_.pop_front();
    std::erase_if(until_gone_, [&](Gone& one) {
      if (one.worker != worker) return false;
      over.push_back(std::move(one));
      return true;
    });
  }
  for (const Gone& one : over) one.answer->complete(outcome);
  return true;
}

void MemberWatch::close(const absl::Status& why) {
  std::vector<Live> until_live;
  std::vector<Gone> until_gone;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    for (const auto& stream : streams_) {
      if (const auto queue = stream.lock()) queue->close();
    }
    streams_.clear();
    until_live.swap(until_live_);
    until_gone.swap(until_gone_);
  }
  for (const Live& one : until_live) one.answer->complete(why);
  for (const Gone& one : until_gone) one.answer->complete(why);
}

MemberEvents MemberWatch::events() {
  auto queue = std::make_shared<MemberEventQueue>();
  MutexLock lock(mutex_);
  for (const auto& [id, member] : present_) queue->push({member, MemberChange::kJoined});
  if (closed_.ok()) {
    std::erase_if(streams_, [](const auto& stream) { return stream.expired(); });
    streams_.push_back(queue);
  } else {
    queue->close();
  }
  return MemberEvents(std::move(queue));
}

void MemberWatch::publish(const MemberEvent& event) {
  std::erase_if(streams_, [&](const std::weak_ptr<MemberEventQueue>& stream) {
    const std::shared_ptr<MemberEventQueue> queue = stream.lock();
    if (queue != nullptr) queue->push(event);
    return queue == nullptr;  // it has no reader any more
  });
}

const WorkerInfo* MemberWatch::present(std::string_view name) const {
  const WorkerInfo* newest = nullptr;
  for (const auto& [id, member] : present_) {
    if (member.name == name) newest = &member;
  }
  return newest;
}

Future<void> MemberWatch::when_gone(std::string_view name, Timeout timeout) {
  if (name == agent_.self().name) {
    return Future<void>::ready(absl::InvalidArgumentError(
        absl::StrCat("worker '", absl_view(name), "' cannot wait until it is gone itself")));
  }
  auto answer = std::make_shared<Future<void>::State>(nullptr);
  {
    MutexLock lock(mutex_);
    std::erase_if(until_gone_, [](const Gone& one) { return one.answer->done(); });
    if (!closed_.ok()) return Future<void>::ready(closed_);
    // A worker may leave before the death of its earlier incarnation is reported.
    const WorkerInfo* const member = present(name);
    const MemberEvent* newest = nullptr;
    for (const MemberEvent& gone : gone_) {
      if (gone.worker.name == name && (newest == nullptr || newest->worker.id < gone.worker.id)) {
        newest = &gone;
      }
    }
    if (newest != nullptr && (member == nullptr || member->id < newest->worker.id)) {
      return Future<void>::ready(outcome_of(*newest));
    }
    if (member == nullptr) {
      return Future<void>::ready(absl::NotFoundError(
          absl::StrCat("no worker '", absl_view(name), "' is known to have joined this group")));
    }
    until_gone_.push_back({member->id, answer});
  }
  limit<void>(answer, timeout,
              absl::StrCat("worker '", absl_view(name), "' neither left nor died"));
  return Future<void>(std::move(answer));
}

Future<WorkerInfo> MemberWatch::when_live(std::string_view name, Timeout timeout) {
  auto answer = std::make_shared<Future<WorkerInfo>::State>(nullptr);
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) {
      answer->complete(closed_);
      return Future<WorkerInfo>(std::move(answer));
    }
    until_live_.push_back({std::string(name), answer});
  }
  // After the push, so that a worker that joins at this moment is not missed.
  answer_live();
  limit<WorkerInfo>(answer, timeout, absl::StrCat("no worker '", absl_view(name), "' joined"));
  return Future<WorkerInfo>(std::move(answer));
}

// A peer whose calls fail already is not live, although its end may not be reported here yet.
std::optional<WorkerInfo> MemberWatch::live_member(std::string_view name) const {
  const absl::StatusOr<WorkerId> id = agent_.resolve(name);
  if (!id.ok() || !agent_.is_live(*id)) return std::nullopt;
  return agent_.info_of(*id);
}

void MemberWatch::answer_live() {
  std::vector<std::pair<std::shared_ptr<Future<WorkerInfo>::State>, WorkerInfo>> live;
  {
    MutexLock lock(mutex_);
    std::erase_if(until_live_, [&](const Live& one) {
      if (one.answer->done()) return true;  // its time was over, or it was cancelled
      std::optional<WorkerInfo> member = live_member(one.name);
      if (!member) return false;
      live.emplace_back(one.answer, *std::move(member));
      return true;
    });
  }
  for (auto& [answer, member] : live) answer->complete(std::move(member));
}

template <class T>
void MemberWatch::limit(const std::shared_ptr<async_internal::FutureState<T>>& answer,
                        Timeout timeout, std::string_view late) {
  const TimePoint deadline = timeout.deadline_from(clock_.now());
  if (answer->done() || deadline == kNever) return;
  clock_.call_at(deadline, [answer, late = std::string(late), timeout] {
    answer->complete(absl::DeadlineExceededError(
        absl::StrCat(late, " within ", absl::FormatDuration(absl::FromChrono(timeout.limit())))));
  });
}

}  // namespace weft::rpc_internal
