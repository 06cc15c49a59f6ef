// Adds to an absl::Status what a caller of a remote function needs to know: whether the function
// ran, and where it failed.
//
// Codes are Abseil's. The facts are payloads of the status, so `absl::Status` is the only error
// type inside Weft. No code parses the text of these errors.
//
// Thread safety: plain values.
// Protocol: docs/errors.md has the table of codes.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weft {

// Whether the remote function ran.
enum class Ran : uint8_t {
  kNo = 0,     // it did not run and will not
  kYes = 1,    // it returned or threw an exception
  kMaybe = 2,  // the answer was lost
};

std::string_view to_string(Ran ran);

// ran_of gives kMaybe for a status without this fact: it is then not known.
absl::Status with_ran(absl::Status status, Ran ran);
Ran ran_of(const absl::Status& status);

// The name of the worker where the error was raised; empty if it is not known. The first call of
// raised_at sets the name, and later calls do not change it.
absl::Status raised_at(absl::Status status, std::string_view worker);
std::string worker_of(const absl::Status& status);

// The error trail: the hops of an error on its way to the caller, innermost first, each as
// "worker/function".
absl::Status add_hop(absl::Status status, std::string_view hop);
std::string trail_of(const absl::Status& status);

// Code, message, error trail and Ran as a text for a person, for example
// "UNKNOWN: went wrong (at worker1/train, executed)". Without a trail, the worker's name stands for
// it.
std::string to_text(const absl::Status& status);

// A status with the same code and facts, and with `text` before the message.
absl::Status prepend(std::string_view text, const absl::Status& status);

// A text as Abseil's functions take it: in Debian's Abseil, string_view is a type of its own. It
// refers to the same characters.
inline absl::string_view absl_view(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace weft

#define WEFT_RETURN_IF_ERROR(expression)                                                   \
  do {                                                                                     \
    if (absl::Status weft_status_ = (expression); !weft_status_.ok()) return weft_status_; \
  } while (false)

#define WEFT_STATUS_CONCAT_(a, b) a##b
#define WEFT_STATUS_CONCAT(a, b) WEFT_STATUS_CONCAT_(a, b)
#define WEFT_ASSIGN_OR_RETURN(declaration, expression) \
  WEFT_ASSIGN_OR_RETURN_(WEFT_STATUS_CONCAT(weft_or_, __LINE__), declaration, expression)
#define WEFT_ASSIGN_OR_RETURN_(name, declaration, expression) \
  auto name = (expression);                                   \
  if (!name.ok()) return std::move(name).status();            \
  declaration = *std::move(name)
