// Makes each error of docs/errors.md happen; errors_test.cc walks its table with them.
//
// Thread safety: one situation at a time; they share state.
// Blocking: `run` waits for its calls.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace errors_test {

struct Situation {
  // Makes the error happen, in each of the ways that the row names, and returns the errors.
  std::function<std::vector<absl::Status>()> run;
  // The expected code where the table says "its code".
  std::optional<absl::StatusCode> code = {};
  // Text that the message or the error trail must contain.
  std::string names = "worker1";
};

// By the first cell of their row.
const std::map<std::string, Situation>& situations();

}  // namespace errors_test
