#include "weft/ddp/reducer/reducer_core.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::ddp_internal {
namespace {

constexpr size_t kMostNames = 10;

std::string list_of(std::vector<std::string> names) {
  const size_t all = names.size();
  if (all > kMostNames) names.resize(kMostNames);
  std::string list = absl::StrCat("'", absl::StrJoin(names, "', '"), "'");
  if (all > kMostNames) absl::StrAppend(&list, " and ", all - kMostNames, " more");
  return list;
}

}  // namespace

ReducerCore::ReducerCore(std::vector<std::string> names, Options options)
    : names_(std::move(names)), options_(options) {
  reset();
}

void ReducerCore::set_buckets(Buckets buckets) {
  buckets_ = std::move(buckets);
  bucket_of_.assign(names_.size(), 0);
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const size_t parameter : buckets_[bucket]) bucket_of_[parameter] = bucket;
  }
}

void ReducerCore::reset() {
  in_pass_ = false;
  static_first_ = options_.static_graph;
  others_counted_ = false;
  shares_first_ = false;
  unused_.clear();
  used_.assign(names_.size(), false);
  state_.assign(names_.size(), State::kAwaited);
  order_.clear();
  arrival_.clear();
  counted_.assign(names_.size(), 0);
}

void ReducerCore::start_over() {
  reset();
  may_build_ = true;
  order_before_.clear();
}

absl::Status ReducerCore::begin(std::vector<size_t> unused) {
  if (in_pass_ && !arrival_.empty() && !counts_only()) {
    return absl::FailedPreconditionError(
        counts()
            ? absl::StrCat("the graph has changed, which static_graph rules out: in the pass "
                           "before, gradients did not come as often as in the first one for ",
                           list_of(missing()))
            : absl::StrCat("the pass before did not end: no gradient came for ", list_of(missing()),
                           ". Parameters that the loss does not use need "
                           "find_unused_parameters, and all outputs of forward must take "
                           "part in the loss"));
  }
  in_pass_ = true;
  marked_unused_ = false;
  shares_first_ = static_first_ && !others_counted_;
  if (needs_unused()) unused_ = std::move(unused);
  next_ = 0;
  state_.assign(names_.size(), State::kAwaited);
  left_in_.clear();
  for (const auto& bucket : buckets_) left_in_.push_back(bucket.size());
  if (counts_only()) counted_.assign(names_.size(), 0);
  to_come_ = counted_;
  order_.clear();
  arrival_.clear();
  return absl::OkStatus();
}

void ReducerCore::give_out(Actions& actions) {
  while (next_ < buckets_.size() && left_in_[next_] == 0) actions.reduce.push_back(next_++);
  actions.last = next_ == buckets_.size();
}

void ReducerCore::ready(size_t parameter, Actions& actions) {
  state_[parameter] = State::kReady;
  order_.push_back(parameter);
  actions.write.push_back(parameter);
  --left_in_[bucket_of_[parameter]];
}

absl::StatusOr<ReducerCore::Actions> ReducerCore::arrived(size_t parameter, bool used) {
  Actions actions;
  used_[parameter] = used_[parameter] || used;
  if (!in_pass_) return actions;
  if (counts_only()) {
    if (counted_[parameter]++ == 0) arrival_.push_back(parameter);
    return actions;
  }
  if (counts()) {
    if (to_come_[parameter] == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the graph has changed, which static_graph rules out: '", names_[parameter],
                       "' got a gradient more often than the ", counted_[parameter],
                       " times in the first pass"));
    }
    if (to_come_[parameter] == counted_[parameter]) arrival_.push_back(parameter);
    if (--to_come_[parameter] > 0) return actions;
  } else {
    if (state_[parameter] == State::kReady) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", names_[parameter],
          "' was marked ready twice in one pass: it is used by several backward passes of one "
          "forward (activation checkpointing, say: set static_graph), or it counted as unused and "
          "got a gradient (it is reached through no output of forward)"));
    }
    arrival_.push_back(parameter);
  }
  if (!marked_unused_) {
    marked_unused_ = true;
    for (const size_t one : unused_) {
      if (one != parameter) ready(one, actions);
    }
  }
  ready(parameter, actions);
  give_out(actions);
  return actions;
}

ReducerCore::Actions ReducerCore::at_end() {
  Actions actions;
  unused_.clear();
  for (size_t parameter = 0; parameter < names_.size(); ++parameter) {
    if (counted_[parameter] == 0) unused_.push_back(parameter);
    ready(parameter, actions);
  }
  // Here the order is only that of the indices, so it is of no use. But if the others have counted
  // before, they know their order now and build their buckets again. So this rank must do that too.
  if (!others_counted_) order_.clear();
  give_out(actions);
  return actions;
}

void ReducerCore::finished() {
  order_before_ = std::exchange(arrival_, {});
  if (order_.size() != names_.size()) order_.clear();
  in_pass_ = false;
  static_first_ = false;
  shares_first_ = false;
  used_.assign(names_.size(), false);
}

std::vector<size_t> ReducerCore::order_to_build() const {
  return builds_order() && order_.size() == names_.size() ? order_ : std::vector<size_t>();
}

void ReducerCore::shadowed() {
  const bool others_only_counted = counts_only() && !others_counted_;
  others_counted_ = others_counted_ || static_first_;
  if (others_only_counted || order_.size() == names_.size()) return;
  order_.resize(names_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
}

std::vector<std::string> ReducerCore::missing() const {
  std::vector<std::string> names;
  for (size_t parameter = 0; parameter < names_.size(); ++parameter) {
    if (state_[parameter] != State::kReady) names.push_back(names_[parameter]);
  }
  return names;
}

}  // namespace weft::ddp_internal
