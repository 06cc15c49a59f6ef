#include "weft/rpc/user_call.h"

#include <c10/util/Exception.h>

#include "weft/async/future.h"

namespace weft::rpc_internal {

absl::Status status_of_user_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    // what() contains a backtrace of this process, which must not reach the caller.
    return absl::UnknownError(absl::StrCat("c10::Error: ", error.what_without_backtrace()));
  } catch (...) {
    return async_internal::status_of_current_exception();
  }
}

absl::Status run_user_code(absl::FunctionRef<void()> code) {
  try {
    code();
    return absl::OkStatus();
  } catch (...) {
    return with_ran(status_of_user_exception(), Ran::kYes);
  }
}

}  // namespace weft::rpc_internal
