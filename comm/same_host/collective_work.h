// An operation or a message that was given to a CollectiveGroup.
//
// Thread safety: done() and deadline() may be called from any thread, the other functions when
// done() has returned true.
// Lifetime: shared by the group and its callers. It may outlive the group.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "weft/comm/same_host/channels.h"
#include "weft/comm/same_host/operation.h"

namespace weft::comm_internal {

class CollectiveWork {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit CollectiveWork(TimePoint deadline) : deadline_(deadline) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  TimePoint deadline() const { return deadline_; }
  const absl::Status& status() const { return status_; }
  int peer() const { return peer_; }  // the rank that sent or got a message

 private:
  friend class CollectiveGroup;
  friend class WorkList;

  const TimePoint deadline_;
  // The group's lock guards the rest until the work is done. Then `operation_.memory` and `then_`
  // belong to the thread that tells of it (CollectiveGroup::tell).
  Operation operation_;  // of a message: only `memory`
  std::vector<std::function<void()>> then_;
  int peer_ = Channels::kAnyone;
  absl::Status status_;
  std::atomic<bool> done_{false};
  std::shared_ptr<CollectiveWork> next_;  // in a WorkList
};

// A list of works, each of which is in one list at a time. It allocates nothing, so work that is
// done is never lost.
class WorkList {
 public:
  WorkList() = default;
  ~WorkList() {
    while (pop_front() != nullptr) {
    }
  }
  WorkList(const WorkList&) = delete;
  WorkList& operator=(const WorkList&) = delete;

  void push_back(std::shared_ptr<CollectiveWork> work) {
    CollectiveWork* const last = work.get();
    (last_ == nullptr ? first_ : last_->next_) = std::move(work);
    last_ = last;
  }
  // Null: the list is empty.
  std::shared_ptr<CollectiveWork> pop_front() {
    std::shared_ptr<CollectiveWork> work = std::move(first_);
    if (work != nullptr) first_ = std::move(work->next_);
    if (first_ == nullptr) last_ = nullptr;
    return work;
  }
  void swap(WorkList& other) {
    first_.swap(other.first_);
    std::swap(last_, other.last_);
  }

 private:
  std::shared_ptr<CollectiveWork> first_;
  CollectiveWork* last_ = nullptr;  // null: empty
};

}  // namespace weft::comm_internal
