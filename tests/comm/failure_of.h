// Returns the text of the exception that a call throws, without a backtrace, or "" if it throws
// nothing.
//
// Thread safety: free functions.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include <c10/util/Exception.h>

namespace weft::testing {

inline std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Catches errors of this type only; others pass on to the caller.
template <class Error>
std::string failure_as(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

inline std::string value_error_of(const std::function<void()>& call) {
  return failure_as<c10::ValueError>(call);
}

}  // namespace weft::testing
