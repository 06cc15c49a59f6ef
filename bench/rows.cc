#include "weft/bench/rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::bench {
namespace {

constexpr int64_t kKilobyte = 1 << 10;
constexpr int64_t kMegabyte = 1 << 20;

Row all_reduce(int ranks, const std::string& size, int64_t bytes) {
  return {absl::StrCat("allreduce ", ranks, " ranks ", size), Work::kAllReduce, bytes, "us", ranks};
}

}  // namespace

const std::vector<Row>& rpc_rows() {
  static const std::vector<Row>& rows = *new std::vector<Row>{
      {"small call", Work::kAdd, 0, "us"},
      {"in flight 64", Work::kAddInFlight, 64, "calls/s"},
      {"in flight 1000", Work::kAddInFlight, 1000, "calls/s"},
      {"send 1 MB", Work::kSend, 1 * kMegabyte, "GB/s"},
      {"send 16 MB", Work::kSend, 16 * kMegabyte, "GB/s"},
      {"send 64 MB", Work::kSend, 64 * kMegabyte, "GB/s"},
      {"send 256 MB", Work::kSend, 256 * kMegabyte, "GB/s"},
      {"echo 64 MB", Work::kEcho, 64 * kMegabyte, "GB/s"},
      {"give 1 MB", Work::kGive, 1 * kMegabyte, "us"},
      {"give 256 MB", Work::kGive, 256 * kMegabyte, "us"},
      {"mixed", Work::kMixed, 64 * kMegabyte, "us"},
      {"dist autograd round", Work::kAutograd, 0, "us"},
      {"autograd depth 4", Work::kAutogradDepth, 4, "us"},
      {"autograd depth 16", Work::kAutogradDepth, 16, "us"},
      {"autograd width 4", Work::kAutogradWidth, 4, "us"},
      {"autograd width 16", Work::kAutogradWidth, 16, "us"},
      {"rref life", Work::kRref, 0, "us"},
      {"after 2 s idle", Work::kAddAfterIdle, 0, "us"},
  };
  return rows;
}

const std::vector<Row>& security_rows() {
  static const std::vector<Row>& rows = *new std::vector<Row>{
      {"small call", Work::kAdd, 0, "us"},
      {"in flight 1000", Work::kAddInFlight, 1000, "calls/s"},
      {"send 64 MB", Work::kSend, 64 * kMegabyte, "GB/s"},
      {"dist autograd round", Work::kAutograd, 0, "us"},
  };
  return rows;
}

std::vector<Row> worker_rows(int workers) {
  std::vector<Row> rows;
  for (const int count : {2, 8, 32, kMostWorkers, workers}) {
    const bool is_there = !rows.empty() && rows.back().processes == count;
    if (count > workers || is_there) continue;
    rows.push_back(
        {absl::StrCat("small calls ", count, " workers"), Work::kAllToAllAdd, 0, "calls/s", count});
    rows.push_back({absl::StrCat("send 1 MB ", count, " workers"), Work::kAllToAllSend,
                    1 * kMegabyte, "GB/s", count});
  }
  return rows;
}

const std::vector<Row>& ddp_rows() {
  static const std::vector<Row>& rows = *new std::vector<Row>{
      all_reduce(2, "4 KB", 4 * kKilobyte),
      all_reduce(2, "1 MB", 1 * kMegabyte),
      all_reduce(2, "25 MB", 25 * kMegabyte),
      all_reduce(2, "200 MB", 200 * kMegabyte),
      {"ddp step communication", Work::kDdpStep, 0, "us"},
      all_reduce(4, "4 KB", 4 * kKilobyte),
      all_reduce(4, "1 MB", 1 * kMegabyte),
      all_reduce(4, "25 MB", 25 * kMegabyte),
      all_reduce(4, "200 MB", 200 * kMegabyte),
  };
  return rows;
}

const std::vector<Row>& rl_rows() {
  static const std::vector<Row>& rows = *new std::vector<Row>([] {
    const std::pair<Work, std::string> kinds[] = {{Work::kTwoCalls, "two calls"},
                                                  {Work::kOneCall, "one call"},
                                                  {Work::kBatched1, "batched 1"},
                                                  {Work::kBatched16, "batched 16"}};
    std::vector<Row> rows;
    for (const auto& [work, name] : kinds) {
      for (const int observers : {1, 4, 16, 64}) {
        rows.push_back(
            {absl::StrCat(name, ", ", observers, observers == 1 ? " observer" : " observers"), work,
             observers, "steps/s", kMostObservers + 1});
      }
      rows.push_back({absl::StrCat("best, ", name), work, 0, "steps/s", kMostObservers + 1});
    }
    return rows;
  }());
  return rows;
}

const std::vector<Row>& pipeline_rows() {
  static const std::vector<Row>& rows = *new std::vector<Row>([] {
    std::vector<Row> rows;
    for (const int64_t parts : {3, 4, 6, 8, 12}) {
      rows.push_back({absl::StrCat(parts, " micro-batches"), Work::kPipeline, parts, "pictures/s",
                      kPipelineShards + 1});
    }
    rows.push_back({"best", Work::kPipeline, 0, "pictures/s", kPipelineShards + 1});
    return rows;
  }());
  return rows;
}

absl::StatusOr<std::vector<Row>> select_rows(const std::vector<Row>& all,
                                             const std::vector<std::string>& names) {
  const auto name_of = [](std::string* out, const Row& row) { out->append(row.name); };
  for (const std::string& name : names) {
    if (std::none_of(all.begin(), all.end(), [&](const Row& row) { return row.name == name; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("no row \"", name, "\"; there are: ", absl::StrJoin(all, ", ", name_of)));
    }
  }
  std::vector<Row> selected;
  for (const Row& row : all) {
    if (names.empty() || std::find(names.begin(), names.end(), row.name) != names.end()) {
      selected.push_back(row);
    }
  }
  return selected;
}

}  // namespace weft::bench
