// The part of DataParallelCore that logs, and that compares the copies at debug level kDetail.
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/log.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/internal/step_check.h"
#include "weft/ddp/reducer/reducer.h"

namespace weft {
namespace ddp_internal {
namespace {

constexpr const char* kClassName = "DistributedDataParallel: ";

}  // namespace

// Compares what a rank may have changed since its copy was compared. Graphs are not compared.
void DataParallelCore::verify_step(bool shadows) {
  if (options_.debug != DebugLevel::kDetail) return;
  StepDescription step;
  const auto passes = static_cast<int64_t>(reducer_->passes() - passes_before_);
  step.items = {{"the number of passes reduced in this group", passes},
                {"training mode (1) or not (0)", module_->is_training() ? 1 : 0},
                {"having a communication hook (1) or not (0)", reducer_->has_hook() ? 1 : 0},
                {"the number of buckets", static_cast<int64_t>(reducer_->buckets().size())}};
  for (size_t i = 0; i < variables_.size(); ++i) {
    step.items.push_back({absl::StrCat("requires_grad of '", names_[i], "'"),
                          variables_[i].requires_grad() ? 1 : 0});
  }
  ddp_internal::verify_step(*group_, step, shadows, join_device());
}

void DataParallelCore::tell_buckets() const {
  if (options_.debug == DebugLevel::kOff) return;
  std::vector<std::string> texts;
  const std::vector<uint64_t> bytes = reducer_->bucket_bytes();
  const Buckets buckets = reducer_->buckets();
  for (size_t i = 0; i < bytes.size(); ++i) {
    const std::vector<size_t>& bucket = buckets[i];
    texts.push_back(absl::StrCat(bytes[i], " bytes in ", bucket.size(), " ('",
                                 names_[bucket.front()], "' to '", names_[bucket.back()], "')"));
  }
  log_info(kClassName, "rank ", group_->rank(), " of ", group_->size(), " on ",
           group_->backend()->getBackendName(), ", ", variables_.size(), " parameters, ",
           reducer_->has_rebuilt() ? "buckets by arrival: " : "first buckets: ",
           absl::StrJoin(texts, ", "));
}

void DataParallelCore::tell_times() {
  const uint64_t passes = reducer_->passes();
  if (options_.debug == DebugLevel::kOff || passes == std::exchange(passes_told_, passes)) return;
  if (passes != 1 && passes != 10 && passes != 100 && passes % 1000 != 0) return;
  const DdpLogging last = logging();
  log_info(kClassName, "rank ", last.rank, ", pass ", passes, ": forward ", last.forward_seconds,
           " s, backward ", last.backward_seconds, " s, communication ", last.communication_seconds,
           " s, of which beside backward ", last.overlap_seconds, " s, ", last.unused_parameters,
           " parameters unused");
}

DdpLogging DataParallelCore::logging() const {
  using Seconds = std::chrono::duration<double>;
  DdpLogging logging;
  logging.rank = group_->rank();
  logging.world_size = group_->size();
  logging.backend = group_->backend()->getBackendName();
  logging.bucket_bytes = reducer_->bucket_bytes();
  logging.bucket_parameters = reducer_->buckets();
  logging.has_rebuilt_buckets = reducer_->has_rebuilt();
  logging.ready_order = reducer_->order_before();
  logging.unused_parameters = reducer_->unused_count();
  logging.reduced_passes = reducer_->passes();
  logging.error = reducer_->failure();
  const Reducer::Times times = reducer_->times();
  logging.forward_seconds = Seconds(times.forward).count();
  logging.backward_seconds = Seconds(times.backward).count();
  logging.communication_seconds = Seconds(times.communication).count();
  logging.overlap_seconds = Seconds(times.overlap).count();
  return logging;
}

}  // namespace ddp_internal

std::map<std::string, std::string> DdpLogging::as_map() const {
  std::vector<std::string> buckets;
  for (const auto& bucket : bucket_parameters) buckets.push_back(absl::StrJoin(bucket, " "));
  return {{"rank", absl::StrCat(rank)},
          {"world_size", absl::StrCat(world_size)},
          {"backend_name", backend},
          {"bucket_sizes", absl::StrJoin(bucket_bytes, ", ")},
          {"per_bucket_param_indices", absl::StrJoin(buckets, ", ")},
          {"has_rebuilt_buckets", has_rebuilt_buckets ? "1" : "0"},
          {"prev_iteration_grad_ready_order_indices", absl::StrJoin(ready_order, ", ")},
          {"unused_parameters", absl::StrCat(unused_parameters)},
          {"reduced_passes", absl::StrCat(reduced_passes)},
          {"error", error},
          {"forward_seconds", absl::StrCat(forward_seconds)},
          {"backward_seconds", absl::StrCat(backward_seconds)},
          {"communication_seconds", absl::StrCat(communication_seconds)},
          {"overlap_seconds", absl::StrCat(overlap_seconds)}};
}

}  // namespace weft
