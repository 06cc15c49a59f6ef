// The text of an error without the C++ stack that LibTorch's what() appends: it goes into messages
// that users, and other ranks, read.
//
// Thread safety: plain function.
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
