#include "weft/rpc/membership/store_thread.h"

#include <memory>
#include <utility>

#include "weft/async/future.h"
#include "weft/base/log.h"

namespace weft::rpc_internal {

void StoreThread::schedule(Task task) {
  thread_.run(std::move(task));
  if (absl::Status started = thread_.start(); !started.ok()) log_warning(started.message());
}

void StoreThread::run(Task task, Nanoseconds at_most) {
  const auto done = std::make_shared<Promise<void>>(nullptr);  // shared with the task
  schedule([done, task = std::move(task)]() mutable {
    task();
    done->set_value();
  });
  (void)done->future().wait_for(at_most);
}

}  // namespace weft::rpc_internal
