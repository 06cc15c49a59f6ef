// Presents the operations of one call of the same-host backend as one c10d::Work.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the work may outlive its backend, because it keeps the group alive.
// Blocking: wait(), until its deadline.
// Errors: wait() throws c10::DistBackendError with the group's text, or what `settle` threw.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "absl/status/status.h"
#include "weft/comm/same_host/collective_group.h"

namespace weft::comm_internal {

std::exception_ptr exception_of(const absl::Status& failure);
[[noreturn]] void throw_failure(const absl::Status& failure);

class SameHostWork : public c10d::Work {
 public:
  using Parts = std::vector<std::shared_ptr<CollectiveGroup::Work>>;

  struct Call {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;  // for profilers; static
    uint64_t number = 0;          // of this call, among the backend's calls
    Parts parts;                  // the operations
    std::vector<at::Tensor> outputs;
    // Makes the outputs from the results of the operations. It runs once, when all operations have
    // succeeded. It runs on the first thread that asks (wait, isCompleted, isSuccess, exception)
    // or, if there is a future, on a thread of the group. May be null.
    std::function<void()> settle;
  };

  SameHostWork(std::shared_ptr<CollectiveGroup> group, Call call);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { group_->abort(absl::CancelledError("work was aborted")); }
  std::vector<at::Tensor> result() override;
  int sourceRank() const override;
  uint64_t getSequencenumber() const override { return number_; }
  // Returns the same future to all callers. It is complete when wait() has returned.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  class Outcome;
  class Promised;

  bool all_done() const;
  void complete_future();

  const std::shared_ptr<CollectiveGroup> group_;  // shared with the backend, which may go first
  const uint64_t number_;
  const std::shared_ptr<Outcome> outcome_;  // shared with Promised
  std::shared_ptr<Promised> promised_;      // made by the first getFuture(); guarded by mutex_
};

}  // namespace weft::comm_internal
