#include "weft/bench/rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::bench {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

}  // namespace

const std::vector<Row>& all_rows() {
  static const std::vector<Row>& rows = *new std::vector<Row>{
      {"small call", Work::kAdd, 0, "us"},
      {"in flight 64", Work::kAddInFlight, 64, "calls/s"},
      {"in flight 1000", Work::kAddInFlight, 1000, "calls/s"},
      {"send 1 MB", Work::kSend, 1 * kMegabyte, "GB/s"},
      {"send 16 MB", Work::kSend, 16 * kMegabyte, "GB/s"},
      {"send 64 MB", Work::kSend, 64 * kMegabyte, "GB/s"},
      {"send 256 MB", Work::kSend, 256 * kMegabyte, "GB/s"},
      {"echo 64 MB", Work::kEcho, 64 * kMegabyte, "GB/s"},
      {"dist autograd round", Work::kAutograd, 0, "us"},
      {"rref life", Work::kRref, 0, "us"},
      {"after 2 s idle", Work::kAddAfterIdle, 0, "us"},
  };
  return rows;
}

absl::StatusOr<std::vector<Row>> select_rows(const std::vector<std::string>& names) {
  const auto name_of = [](std::string* out, const Row& row) { out->append(row.name); };
  for (const std::string& name : names) {
    if (std::none_of(all_rows().begin(), all_rows().end(),
                     [&](const Row& row) { return row.name == name; })) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no row \"", name, "\"; there are: ", absl::StrJoin(all_rows(), ", ", name_of)));
    }
  }
  std::vector<Row> selected;
  for (const Row& row : all_rows()) {
    if (names.empty() || std::find(names.begin(), names.end(), row.name) != names.end()) {
      selected.push_back(row);
    }
  }
  return selected;
}

}  // namespace weft::bench
