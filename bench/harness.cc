#include "weft/bench/harness.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/bench/machine.h"

namespace weft::bench {

absl::Status Harness::Options::validate() const {
  if (rounds < 1) return absl::InvalidArgumentError(absl::StrCat("rounds: ", rounds, " < 1"));
  if (!(block_seconds > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("block: ", block_seconds, " s is not above 0"));
  }
  if (!(idle_seconds >= 0)) return absl::InvalidArgumentError("idle: negative");
  return absl::OkStatus();
}

Harness::Harness(std::vector<std::unique_ptr<Group>>& groups, Options options)
    : groups_(groups),
      options_(std::move(options)),
      random_(options_.seed),
      failed_(groups.size()) {
  for (const std::unique_ptr<Group>& group : groups_) {
    if (group->spins_when_idle()) group->pause();
  }
}

Harness::Order Harness::shuffled(Order order) {
  std::shuffle(order.begin(), order.end(), random_);
  return order;
}

RowResult Harness::run(const Row& row) {
  start_failed_ones_again();
  RowResult result;
  result.row = row;
  for (const std::unique_ptr<Group>& group : groups_)
    result.series.push_back({group->name(), {}, {}});

  const ProcessorTicks begin = processor_ticks();
  ProcessorTicks now = begin;
  for (int round = 0; round <= options_.rounds; ++round) {
    const bool counted = round > 0;
    if (row.work == Work::kAddAfterIdle) {
      run_idle_round(row, counted, result);
    } else {
      run_round(row, counted, result);
    }
    const ProcessorTicks before = std::exchange(now, processor_ticks());
    if (counted && stolen_fraction(before, now) > kDisturbed) ++result.disturbed_rounds;
  }
  result.stolen = stolen_fraction(begin, now);
  return result;
}

void Harness::run_round(const Row& row, bool counted, RowResult& result) {
  Order all(groups_.size());
  std::iota(all.begin(), all.end(), 0);
  for (const size_t contestant : shuffled(std::move(all))) {
    Group& group = *groups_[contestant];
    if (group.spins_when_idle()) group.resume();
    run_block_of(contestant, row, counted, result);
    if (group.spins_when_idle()) group.pause();
  }
}

// All contestants that sleep when idle share one pause. A contestant that spins has a pause alone.
void Harness::run_idle_round(const Row& row, bool counted, RowResult& result) {
  std::vector<Order> resting(1);
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i]->spins_when_idle()) {
      resting.push_back({i});
    } else {
      resting[0].push_back(i);
    }
  }
  std::shuffle(resting.begin(), resting.end(), random_);
  for (Order& together : resting) {
    if (together.empty()) continue;
    const bool spins = groups_[together[0]]->spins_when_idle();
    if (spins) groups_[together[0]]->resume();
    options_.sleep(options_.idle_seconds);
    for (const size_t contestant : shuffled(std::move(together))) {
      run_block_of(contestant, row, counted, result);
      if (spins) groups_[contestant]->pause();
    }
  }
}

void Harness::run_block_of(size_t contestant, const Row& row, bool counted, RowResult& result) {
  Series& series = result.series[contestant];
  if (failed_[contestant] && series.status.ok()) {
    series.status = absl::UnavailableError("could not be started again");
  }
  if (!series.status.ok()) return;
  absl::StatusOr<BlockResult> block = groups_[contestant]->run(row, options_.block_seconds);
  if (block.ok()) {
    if (counted) series.blocks.push_back(*block);
    return;
  }
  series.status = block.status();
  if (absl::IsUnimplemented(block.status())) return;
  failed_[contestant] = true;
  options_.report(absl::StrCat(series.contestant, " failed in \"", row.name,
                               "\": ", block.status().ToString()));
}

void Harness::start_failed_ones_again() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!failed_[i]) continue;
    const absl::Status started = groups_[i]->start();
    failed_[i] = !started.ok();
    if (!started.ok()) {
      options_.report(
          absl::StrCat(groups_[i]->name(), " does not start again: ", started.ToString()));
    } else if (groups_[i]->spins_when_idle()) {
      groups_[i]->pause();
    }
  }
}

}  // namespace weft::bench
