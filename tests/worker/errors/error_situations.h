// How each error of docs/errors.md comes about: what errors_test.cc walks the table with.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace errors_test {

struct Situation {
  // Makes it happen, in each of the ways that the row speaks of.
  std::function<std::vector<absl::Status>()> run;
  // Where the table says "its code".
  std::optional<absl::StatusCode> code = {};
  // What the message or the trail must say.
  std::string names = "worker1";
};

// By the first cell of their row.
const std::map<std::string, Situation>& situations();

}  // namespace errors_test
