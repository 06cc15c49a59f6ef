// The exception that a caller gets when a remote call, a reference or a backward pass fails.
//
// Thread safety: immutable once thrown.
// Errors: docs/errors.md lists the errors of calls and references: the cause, the code, and whether
// the function ran. Headers list the errors of passes, of optimizers and of joining.
#pragma once

#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "weft/base/status.h"

namespace weft {

class RpcError : public std::runtime_error {
 public:
  explicit RpcError(absl::Status status)
      : std::runtime_error(to_text(status)), status_(std::move(status)) {}

  const absl::Status& status() const { return status_; }
  absl::StatusCode code() const { return status_.code(); }
  Ran ran() const { return ran_of(status_); }
  std::string worker() const { return worker_of(status_); }  // where the error was raised
  std::string trail() const { return trail_of(status_); }    // the hops, innermost first

 private:
  absl::Status status_;
};

}  // namespace weft
