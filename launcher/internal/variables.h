// Reads variables one by one and collects a text for each problem, so that one error names all of
// them.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/environment.h"

namespace weft::launcher_internal {

inline constexpr uint32_t kMaxNumber = std::numeric_limits<int32_t>::max();

class Variables {
 public:
  // `read` must outlive this object.
  explicit Variables(const EnvironmentReader& read) : read_(read) {}

  // An empty variable counts as unset, as in a shell's ${NAME:-default}.
  std::optional<std::string> text(const char* name) const;
  bool is_set(const char* name) const { return text(name).has_value(); }

  // If the variable is missing or bad, these add a problem. Then the result is "" or `low`.
  std::string required_text(const char* name);
  uint32_t required_number(const char* name, uint32_t low, uint32_t high);

  // `fallback` if the variable is not set. A bad value adds a problem.
  uint32_t number(const char* name, uint32_t low, uint32_t high, uint32_t fallback);
  bool flag(const char* name);  // true, 1, false or 0 in any case; false if it is not set

  void add_problem(std::string problem) { problems_.push_back(std::move(problem)); }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  uint32_t parse(const char* name, const std::string& value, uint32_t low, uint32_t high);

  const EnvironmentReader& read_;
  std::vector<std::string> problems_;
};

}  // namespace weft::launcher_internal
