// Returns the text of an exception without the C++ stack that LibTorch's what() appends. The text
// goes into errors that users and other ranks read.
//
// Thread safety: a free function.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace weft::comm_internal {

inline std::string text_of(const std::exception& failed) {
  const auto* const error = dynamic_cast<const c10::Error*>(&failed);
  return error != nullptr ? error->what_without_backtrace() : failed.what();
}

}  // namespace weft::comm_internal
