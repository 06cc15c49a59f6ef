#include "weft/launcher/internal/slurm_lists.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "weft/base/status.h"

namespace weft::launcher_internal {
namespace {

constexpr size_t kMostDigits = 9;
constexpr size_t kLongestName = 255;

absl::Status bad(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status too_long() { return bad(absl::StrCat("more than ", kMostEntries, " entries")); }

bool is_name_character(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
}

absl::StatusOr<uint32_t> number_in(absl::string_view text) {
  uint32_t number = 0;
  const bool digits =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (!digits || text.size() > kMostDigits || !absl::SimpleAtoi(text, &number)) {
    return bad(absl::StrCat("'", text, "' is not a number of at most ", kMostDigits, " digits"));
  }
  return number;
}

// `inside` is what stands between two brackets, for example 01-03,7.
absl::StatusOr<std::vector<std::string>> expand_ranges(absl::string_view inside) {
  std::vector<std::string> numbers;
  for (const absl::string_view range : absl::StrSplit(inside, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, absl::MaxSplits('-', 1));
    WEFT_ASSIGN_OR_RETURN(const uint32_t first, number_in(ends.front()));
    WEFT_ASSIGN_OR_RETURN(const uint32_t last, number_in(ends.back()));
    if (last < first) return bad(absl::StrCat("the range '", range, "' is backwards"));
    if (last - first >= kMostEntries - numbers.size()) return too_long();
    for (uint32_t i = first; i <= last; ++i) {
      std::string number = absl::StrCat(i);
      const size_t width = ends.front().size();  // 01-03 has leading zeros
      if (number.size() < width) number.insert(0, width - number.size(), '0');
      numbers.push_back(std::move(number));
    }
  }
  return numbers;
}

// Appends each of `endings` to each of `names`.
absl::Status extend(std::vector<std::string>& names, const std::vector<std::string>& endings) {
  if (names.size() * endings.size() > kMostEntries) return too_long();
  std::vector<std::string> longer;
  for (const std::string& name : names) {
    for (const std::string& ending : endings) {
      if (name.size() + ending.size() > kLongestName) {
        return bad(absl::StrCat("a name is longer than ", kLongestName, " characters"));
      }
      longer.push_back(name + ending);
    }
  }
  names = std::move(longer);
  return absl::OkStatus();
}

// Expands the name that begins at `at`, and moves `at` to the comma behind it, or to the end.
absl::StatusOr<std::vector<std::string>> expand_name(absl::string_view list, size_t& at) {
  std::vector<std::string> names = {""};
  const size_t begin = at;
  while (at < list.size() && list[at] != ',') {
    if (list[at] == '[') {
      const size_t close = list.find(']', at);
      if (close == absl::string_view::npos) return bad("a bracket is not closed");
      WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                            expand_ranges(list.substr(at + 1, close - at - 1)));
      WEFT_RETURN_IF_ERROR(extend(names, numbers));
      at = close + 1;
      continue;
    }
    const size_t text = at;
    while (at < list.size() && is_name_character(list[at])) ++at;
    if (at == text) return bad(absl::StrCat("'", list.substr(at, 1), "' is not expected"));
    WEFT_RETURN_IF_ERROR(extend(names, {std::string(list.substr(text, at - text))}));
  }
  if (at == begin) return bad("a name is empty");
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> expand_node_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (size_t at = 0;; ++at) {
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, expand_name(list, at));
    if (hosts.size() + names.size() > kMostEntries) return too_long();
    std::move(names.begin(), names.end(), std::back_inserter(hosts));
    if (at == list.size()) return hosts;
  }
}

absl::StatusOr<std::vector<uint32_t>> expand_counts(const std::string& list) {
  std::vector<uint32_t> counts;
  for (absl::string_view item : absl::StrSplit(absl::string_view(list), ',')) {
    uint32_t times = 1;
    const size_t bracket = item.find("(x");
    if (bracket != absl::string_view::npos) {
      if (item.back() != ')') return bad("a bracket is not closed");
      WEFT_ASSIGN_OR_RETURN(times, number_in(item.substr(bracket + 2, item.size() - bracket - 3)));
      item = item.substr(0, bracket);
    }
    WEFT_ASSIGN_OR_RETURN(const uint32_t count, number_in(item));
    if (times > kMostEntries - counts.size()) return too_long();
    counts.insert(counts.end(), times, count);
  }
  return counts;
}

}  // namespace weft::launcher_internal
