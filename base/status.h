// Status with the two facts a caller of a remote function needs: did it run, and where it failed.
//
// Codes are Abseil's; the facts travel as payloads, so `absl::Status` stays the only error type
// inside Weft. Nothing ever parses the text of a message.
//
// Thread safety: plain values.
// Protocol: docs/errors.md has the table of codes.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace weft {

// Whether the remote function ran.
enum class Ran : uint8_t {
  kNo = 0,     // it did not, and will not
  kYes = 1,    // it ran, to its end or to its exception
  kMaybe = 2,  // the answer was lost
};

std::string_view to_string(Ran ran);

// A status that carries no fact counts as kMaybe: that is what can be said without knowing.
absl::Status with_ran(absl::Status status, Ran ran);
Ran ran_of(const absl::Status& status);

// The worker where the error was raised; empty when unknown. The first name stays: later calls do
// not change it.
absl::Status raised_at(absl::Status status, std::string_view worker);
std::string worker_of(const absl::Status& status);

// The hops that an error took on its way to the caller, innermost first, as "worker/function".
absl::Status add_hop(absl::Status status, std::string_view hop);
std::string trail_of(const absl::Status& status);

// All of it for a person: code, message, and where it happened: "UNKNOWN: went wrong (at
// worker1/train, executed)".
std::string to_text(const absl::Status& status);

// Same code and facts, text put before the message.
absl::Status prepend(std::string_view text, const absl::Status& status);

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
