#include "weft/rref/internal/rref_handle.h"

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/rref/rref_driver.h"

namespace weft::rref_internal {

RRefHandle::~RRefHandle() {
  if (const auto driver = driver_.lock()) driver->release(handle_);
}

absl::StatusOr<std::shared_ptr<RRefDriver>> RRefHandle::driver() const {
  std::shared_ptr<RRefDriver> driver = driver_.lock();
  if (driver == nullptr) {
    return with_ran(absl::FailedPreconditionError(
                        absl::StrCat("the worker of ", rref().to_string(), " has shut down")),
                    Ran::kNo);
  }
  driver->look_after(owner_);
  WEFT_RETURN_IF_ERROR(driver->usable(handle_));
  return driver;
}

std::shared_ptr<RpcRuntime> RRefHandle::runtime() const {
  const std::shared_ptr<RRefDriver> driver = driver_.lock();
  return driver != nullptr ? driver->runtime() : nullptr;
}

std::string RRefHandle::owner_name() const {
  // Held for the call: the runtime keeps the agent alive, and the agent knows the names.
  const std::shared_ptr<RpcRuntime> runtime = this->runtime();
  return runtime != nullptr ? runtime->name_of(owner_) : owner_.to_string();
}

}  // namespace weft::rref_internal
