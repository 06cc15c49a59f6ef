#include "weft/ddp/reducer/reduction_order.h"

#include <utility>

namespace weft::ddp_internal {

ReductionOrder::ReductionOrder(std::vector<std::string> names, ReducerCore::Options options)
    : parameters_(names.size()), core_(std::move(names), options) {}

void ReductionOrder::set_buckets(Buckets buckets) {
  const MutexLock lock(mutex_);
  core_.set_buckets(std::move(buckets));
}

bool ReductionOrder::needs_unused() const {
  const MutexLock lock(mutex_);
  return core_.needs_unused();
}

absl::Status ReductionOrder::begin(std::vector<size_t> unused) {
  const MutexLock lock(mutex_);
  if (absl::Status status = core_.begin(std::move(unused)); !status.ok()) return status;
  end_claimed_ = false;
  seen_elsewhere_ = false;
  first_arrival_ = {};
  return absl::OkStatus();
}

absl::Status ReductionOrder::cancel() {
  const MutexLock lock(mutex_);
  if (!core_.in_pass()) return absl::OkStatus();
  if (absl::Status status = core_.begin({}); !status.ok()) return status;  // the pass has run
  core_.cancel();
  return absl::OkStatus();
}

ReductionOrder::Clock::time_point ReductionOrder::finished() {
  const MutexLock lock(mutex_);
  core_.finished();
  ++passes_;
  return first_arrival_;
}

void ReductionOrder::reset() {
  const MutexLock lock(mutex_);
  core_.reset();
}

void ReductionOrder::start_over(Buckets buckets) {
  const MutexLock lock(mutex_);
  core_.start_over();
  core_.set_buckets(std::move(buckets));
}

void ReductionOrder::shadowed() {
  const MutexLock lock(mutex_);
  core_.shadowed();
}

bool ReductionOrder::others_share_used() const {
  const MutexLock lock(mutex_);
  return core_.others_share_used();
}

std::vector<size_t> ReductionOrder::take_order_to_build() {
  const MutexLock lock(mutex_);
  std::vector<size_t> order = core_.order_to_build();
  if (!order.empty()) core_.built_again();
  return order;
}

absl::StatusOr<ReductionOrder::Step> ReductionOrder::arrived(size_t parameter, bool used) {
  const MutexLock lock(mutex_);
  if (core_.in_pass() && first_arrival_ == Clock::time_point()) first_arrival_ = Clock::now();
  absl::StatusOr<ReducerCore::Actions> actions = core_.arrived(parameter, used);
  if (!actions.ok()) return std::move(actions).status();
  if (!actions->write.empty()) return step_of(*std::move(actions));
  Step step;
  step.queue_end = claim_end_locked();
  return step;
}

bool ReductionOrder::claim_end() {
  const MutexLock lock(mutex_);
  return claim_end_locked();
}

bool ReductionOrder::claim_end_locked() {
  return core_.reduces_at_end() && !std::exchange(end_claimed_, true);
}

ReductionOrder::Step ReductionOrder::at_end() {
  const MutexLock lock(mutex_);
  return step_of(core_.at_end());
}

ReductionOrder::Step ReductionOrder::step_of(ReducerCore::Actions actions) {
  Step step;
  step.actions = std::move(actions);
  for (const size_t parameter : step.actions.write) step.used.push_back(core_.used(parameter));
  if (step.actions.last && core_.shares_used()) {
    for (size_t i = 0; i < parameters_; ++i) step.used_map.push_back(core_.used(i) ? 1 : 0);
  }
  step.ticket = turns_.take_ticket();  // last, because nobody may lose a ticket
  return step;
}

bool ReductionOrder::elsewhere() {
  const MutexLock lock(mutex_);
  if (!core_.in_pass()) return false;
  seen_elsewhere_ = true;
  return true;
}

bool ReductionOrder::cancel_unseen() {
  const MutexLock lock(mutex_);
  if (!std::exchange(seen_elsewhere_, false) || !core_.in_pass() || core_.begun()) return false;
  if (passes_ > 0) return false;
  core_.cancel();
  return true;
}

ReductionOrder::Used ReductionOrder::used() const {
  Used used;
  const MutexLock lock(mutex_);
  used.shared = core_.shares_used();
  used.here.reserve(parameters_);
  for (size_t i = 0; i < parameters_; ++i) used.here.push_back(core_.used(i));
  return used;
}

bool ReductionOrder::in_pass() const {
  const MutexLock lock(mutex_);
  return core_.in_pass();
}

std::vector<size_t> ReductionOrder::order_before() const {
  const MutexLock lock(mutex_);
  return core_.order_before();
}

std::vector<std::string> ReductionOrder::missing() const {
  const MutexLock lock(mutex_);
  return core_.missing();
}

uint64_t ReductionOrder::passes() const {
  const MutexLock lock(mutex_);
  return passes_;
}

}  // namespace weft::ddp_internal
