#include "weft/ddp/internal/checkpoint_agreement.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/comm/exchange_device.h"

namespace weft::ddp_internal {
namespace {

constexpr size_t kReportBytes = 512;  // of an error text that is sent to the other ranks

struct Report {
  FoundCheckpoint found;
  char error[kReportBytes] = {};
};

std::string shown(const FoundCheckpoint& found) {
  return absl::StrCat("epoch ", found.progress.epoch, " step ", found.progress.step, " sample ",
                      found.progress.sampler_position, " (", found.bytes, " bytes, hash ",
                      absl::Hex(found.hash, absl::kZeroPad16), ")");
}

}  // namespace

CheckpointAgreement::CheckpointAgreement(ProcessGroup& group, const torch::nn::Module& module,
                                         std::string place)
    : group_(group), place_(std::move(place)), device_(at::kCPU) {
  const std::vector<at::Tensor> parameters = module.parameters();
  if (!parameters.empty()) device_ = comm_internal::exchange_device(group, parameters[0].device());
}

void CheckpointAgreement::reach(const std::string& error, const FoundCheckpoint& found) {
  Report mine;
  mine.found = found;
  error.copy(mine.error, kReportBytes - 1);
  const at::Tensor bytes = at::zeros({static_cast<int64_t>(sizeof(Report))}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &mine, sizeof(mine));
  std::vector<std::string> errors;
  std::vector<Report> reports;
  for (const at::Tensor& gathered : group_.all_gather(bytes.to(device_))) {
    Report report;
    std::memcpy(&report, gathered.cpu().const_data_ptr(), sizeof(report));
    if (report.error[0] != '\0') {
      errors.push_back(absl::StrCat("rank ", reports.size(), ": ", report.error));
    }
    reports.push_back(report);
  }
  if (!errors.empty()) fail(absl::StrJoin(errors, "; "));
  std::string others;
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    if (reports[rank].found == reports[0].found) continue;
    absl::StrAppend(&others, "; rank ", rank, ": ", shown(reports[rank].found));
  }
  if (others.empty()) return;
  fail(
      absl::StrCat("ranks found different checkpoints: rank 0: ", shown(reports[0].found), others));
}

void CheckpointAgreement::fail(const std::string& why) const {
  C10_THROW_ERROR(ValueError, absl::StrCat(place_, why));
}

}  // namespace weft::ddp_internal
