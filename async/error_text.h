// Shortens the text of an exception before users or other workers read it.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "absl/strings/string_view.h"

namespace weft {

// Returns `what` without the C++ stack that LibTorch appends to the text of its errors. This is for
// code that does not include LibTorch; other code uses c10::Error::what_without_backtrace().
inline absl::string_view without_stack(absl::string_view what) {
  return what.substr(0, what.find("\nException raised from "));
}

}  // namespace weft
