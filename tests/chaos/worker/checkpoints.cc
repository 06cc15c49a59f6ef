#include "weft/tests/chaos/worker/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <ATen/ops/full.h>

#include "absl/strings/str_cat.h"

namespace weft::chaos {
namespace {

constexpr int kKept = 2;
constexpr int64_t kNumbers = 8 << 10;  // float64 of one shard; the disk has 8 MiB for all workers
constexpr const char* kShard = "state";

// True if no file could be opened, or no memory was available. Then the checkpoint may still be
// good.
bool says_nothing(const absl::Status& status) {
  return status.code() != absl::StatusCode::kDataLoss &&
         status.code() != absl::StatusCode::kNotFound;
}

}  // namespace

Checkpoints::Checkpoints(std::string folder, Tracker& tracker)
    : folder_(std::move(folder), {.keep = kKept}), tracker_(tracker) {}

void Checkpoints::resume() {
  const absl::StatusOr<std::vector<int64_t>> steps = folder_.steps();
  if (!steps.ok() || steps->empty()) return;
  saved_ = steps->back();
  tried_ = saved_;
  check();
}

void Checkpoints::save() {
  const int64_t step = saved_ + 1;
  tried_ = step;
  const at::Tensor state = at::full({kNumbers}, static_cast<double>(step), at::kDouble);
  const absl::Status status = folder_.save({.step = step}, {{kShard, {{"step", state}}}});
  tracker_.note(RecordKind::kSaved, static_cast<uint64_t>(step), 0,
                static_cast<uint16_t>(status.code()));
  // Aborted means: it was saved, but an older checkpoint could not be removed.
  if (status.ok() || absl::IsAborted(status)) saved_ = step;
  check();
}

void Checkpoints::check() {
  const absl::StatusOr<Checkpoint> newest = folder_.load_newest();
  if (!newest.ok()) {
    const bool none = saved_ == 0 && absl::IsNotFound(newest.status());
    if (!none && !says_nothing(newest.status())) {
      tracker_.broken(Broken::kCheckpoint, static_cast<uint64_t>(saved_));
    }
    return;
  }
  const int64_t step = newest->info.step;
  const auto shard = newest->shards.find(kShard);
  bool good = step >= saved_ && step <= tried_ && shard != newest->shards.end();
  if (good) {
    const at::Tensor& state = shard->second.tensors.at("step");
    good = state.numel() == kNumbers && state.eq(static_cast<double>(step)).all().item<bool>();
  }
  if (!good) tracker_.broken(Broken::kCheckpoint, static_cast<uint64_t>(saved_));
  saved_ = std::max(saved_, step);
}

uint64_t Checkpoints::files_left() {
  for (int i = 0; i <= kKept; ++i) save();
  uint64_t left = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder_.root(), error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    const bool known = entry->is_directory() || name == "manifest.json" || name == "lock" ||
                       name == absl::StrCat(kShard, ".safetensors");
    if (!known) ++left;
  }
  const absl::StatusOr<std::vector<int64_t>> steps = folder_.steps();
  return left + (steps.ok() && steps->size() > kKept ? steps->size() - kKept : 0);
}

}  // namespace weft::chaos
