// What a call of the same-host backend returns: operations of a group, as one c10d::Work.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: may outlive its backend; it keeps the group.
// Blocking: wait(), until its deadline.
// Errors: wait() throws c10::DistBackendError with the group's words, or what `settle` threw.
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
    uint64_t number = 0;          // of the backend's calls
    Parts parts;                  // the operations
    std::vector<at::Tensor> outputs;
    // Makes the outputs of what the operations have brought. Runs once, when all have succeeded, on
    // the thread of whoever asks first (wait, isCompleted, isSuccess, exception), or, where there
    // is a future, of the group. May be none.
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
  // One for all who ask; complete when wait() has returned.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  class Outcome;
  class Promised;

  bool all_done() const;
  void complete_future();

  const std::shared_ptr<CollectiveGroup> group_;  // outlives its backend for this
  const uint64_t number_;
  const std::shared_ptr<Outcome> outcome_;  // shared with Promised
  std::shared_ptr<Promised> promised_;      // once somebody asked; under mutex_
};

}  // namespace weft::comm_internal
