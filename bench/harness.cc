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

Harness::Harness(std::vector<std::unique_ptr<Pair>>& pairs, Options options)
    : pairs_(pairs), options_(std::move(options)), random_(options_.seed), failed_(pairs.size()) {
  for (const std::unique_ptr<Pair>& pair : pairs_) {
    if (pair->spins_when_idle()) pair->pause();
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
  for (const std::unique_ptr<Pair>& pair : pairs_) result.series.push_back({pair->name(), {}, {}});

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
  Order all(pairs_.size());
  std::iota(all.begin(), all.end(), 0);
  for (const size_t contestant : shuffled(std::move(all))) {
    Pair& pair = *pairs_[contestant];
    if (pair.spins_when_idle()) pair.resume();
    run_block_of(contestant, row, counted, result);
    if (pair.spins_when_idle()) pair.pause();
  }
}

// Those that sleep when idle are idle together; one that spins has the pause for itself.
void Harness::run_idle_round(const Row& row, bool counted, RowResult& result) {
  std::vector<Order> groups(1);
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (pairs_[i]->spins_when_idle()) {
      groups.push_back({i});
    } else {
      groups[0].push_back(i);
    }
  }
  std::shuffle(groups.begin(), groups.end(), random_);
  for (Order& group : groups) {
    if (group.empty()) continue;
    const bool spins = pairs_[group[0]]->spins_when_idle();
    if (spins) pairs_[group[0]]->resume();
    options_.sleep(options_.idle_seconds);
    for (const size_t contestant : shuffled(std::move(group))) {
      run_block_of(contestant, row, counted, result);
      if (spins) pairs_[contestant]->pause();
    }
  }
}

void Harness::run_block_of(size_t contestant, const Row& row, bool counted, RowResult& result) {
  Series& series = result.series[contestant];
  if (failed_[contestant] && series.status.ok()) {
    series.status = absl::UnavailableError("could not be started again");
  }
  if (!series.status.ok()) return;
  absl::StatusOr<BlockResult> block = pairs_[contestant]->run(row, options_.block_seconds);
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
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (!failed_[i]) continue;
    const absl::Status started = pairs_[i]->start();
    failed_[i] = !started.ok();
    if (!started.ok()) {
      options_.report(
          absl::StrCat(pairs_[i]->name(), " does not start again: ", started.ToString()));
    } else if (pairs_[i]->spins_when_idle()) {
      pairs_[i]->pause();
    }
  }
}

}  // namespace weft::bench
