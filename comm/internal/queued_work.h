// Runs tasks one after another on one thread, and returns a c10d::Work for each.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the destructor waits until all tasks of the queue are done. On the queue's own thread
// (in a callback of a future) it does not wait: the thread stops by itself after these tasks. Work
// may outlive its queue.
// Blocking: the destructor; Work::wait. A callback of a work's future runs on the queue's thread
// and delays the next tasks.
// Errors: the wait() of a work throws what its task threw.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/async/serial_thread.h"

namespace weft::comm_internal {

class WorkQueue {
 public:
  struct Call {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;  // for profilers; static
    int rank = 0;
    uint64_t number = 0;
    std::vector<at::Tensor> outputs;
  };
  c10::intrusive_ptr<c10d::Work> push(Call call, std::function<void()> task);

 private:
  SerialThread thread_{SerialThread::AtEnd::kRun, "the queue of a process group"};
};

}  // namespace weft::comm_internal
