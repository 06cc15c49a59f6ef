// A thread that does one piece of work after another, and what stands for each.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: a queue that ends waits until all work in it is done, unless it ends on its own thread
// (in a callback of a future): then the thread ends by itself. Work may outlive its queue.
// Blocking: the end; Work::wait. A callback of a work's future runs on the queue's thread, and
// holds up what comes after. Errors: what a piece of work throws is thrown by its wait().
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
