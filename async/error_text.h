// Texts of errors that others read: users, and other workers.
//
// Thread safety: plain functions.
#pragma once

#include "absl/strings/string_view.h"

namespace weft {

// `what` without the C++ stack that LibTorch appends to the text of its errors. For code that does
// not know LibTorch's types; elsewhere c10::Error::what_without_backtrace() says the same.
inline absl::string_view without_stack(absl::string_view what) {
  return what.substr(0, what.find("\nException raised from "));
}

}  // namespace weft
