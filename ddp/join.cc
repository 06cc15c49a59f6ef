#include "weft/ddp/join.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"

namespace weft {
namespace {

constexpr int kWarnAfter = 1000;  // steps of other ranks

int sum_over_ranks(ProcessGroup& group, at::Device device, int mine) {
  const at::Tensor sum = at::full({1}, mine, at::TensorOptions().dtype(at::kInt).device(device));
  group.all_reduce(sum);
  return sum.item<int>();
}

// With throw_on_early_termination, each step asks a second question: has any rank joined?
bool anybody_joined(ProcessGroup& group, at::Device device, bool i) {
  return sum_over_ranks(group, device, i ? 1 : 0) > 0;
}

}  // namespace

int Joinable::announce_step() {
  ProcessGroup& group = *join_group();
  if (active_ == nullptr) return group.size();
  if (active_->first != this) return active_->training;
  active_->training = sum_over_ranks(group, join_device(), 1);
  if (active_->options.throw_on_early_termination && anybody_joined(group, join_device(), false)) {
    C10_THROW_ERROR(Error, "join: a rank has no more inputs, so no rank goes on");
  }
  return active_->training;
}

void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options) {
  if (joinables.empty()) C10_THROW_ERROR(ValueError, "join: needs at least one joinable");
  Joinable& first = *joinables.front();
  ProcessGroup& group = *first.join_group();
  for (const Joinable* const one : joinables) {
    if (one->active_ != nullptr) C10_THROW_ERROR(ValueError, "join: a join inside a join");
    if (one->join_group()->backend() != group.backend()) {
      C10_THROW_ERROR(ValueError, "join: all joinables are of one process group");
    }
  }
  for (const Joinable* const one : joinables) one->check_join(options);
  const auto active = std::make_shared<ddp_internal::ActiveJoin>(
      ddp_internal::ActiveJoin{options, &first, group.size()});
  for (Joinable* const one : joinables) one->active_ = active;
  struct Leave {
    const std::vector<Joinable*>& joinables;
    std::function<void(Joinable*)> leave;
    ~Leave() {
      for (Joinable* const one : joinables) leave(one);
    }
  } leave{joinables, [](Joinable* one) { one->active_ = nullptr; }};

  body();
  bool last = true;
  for (int steps = 1;; ++steps) {
    if (sum_over_ranks(group, first.join_device(), 0) == 0) break;
    if (options.throw_on_early_termination) {
      anybody_joined(group, first.join_device(), true);
      C10_THROW_ERROR(Error, absl::StrCat("join: rank ", group.rank(), " has no more inputs"));
    }
    last = false;
    if (steps == kWarnAfter) {
      log_warning("join: rank ", group.rank(), " has had no inputs for ", steps,
                  " steps of others");
    }
    for (Joinable* const one : joinables) one->shadow_step();
  }
  for (Joinable* const one : joinables) one->end_join(last);
}

}  // namespace weft
