#include "weft/bench/processes/rank_group.h"

#include <algorithm>
#include <numeric>
#include <signal.h>
#include <thread>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/child.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;

constexpr double kWarmUpShare = 0.1;
constexpr double kTrialShare = 0.1;  // of a block; a shorter trial is repeated
constexpr int64_t kTrialGrowth = 8;

// A step's communication is a small difference of two large times, so it needs more than two steps.
int64_t fewest_calls(const Row& row) { return row.work == Work::kDdpStep ? 8 : 2; }

absl::Status of_rank(size_t rank, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
}

// From the last rank's call of join until all have joined. The ranks tell both moments in seconds
// of the host's monotonic clock.
double join_seconds(const std::vector<Json>& answers) {
  double last_begin = 0, last_end = 0;
  for (const Json& answer : answers) {
    last_begin = std::max(last_begin, answer.value("begin", 0.0));
    last_end = std::max(last_end, answer.value("end", 0.0));
  }
  return last_end - last_begin;
}

}  // namespace

absl::Status RankGroup::start() {
  stop();
  const absl::Status started = start_all();
  if (!started.ok()) stop_at_once();
  return started;
}

absl::Status RankGroup::start_all() {
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  for (int rank = 0; rank < options_.ranks; ++rank) {
    std::vector<std::string> words = options_.command;
    words.insert(words.end(), {"--role", "rank", "--rank", absl::StrCat(rank), "--ranks",
                               absl::StrCat(options_.ranks)});
    if (options_.pin) words.insert(words.end(), {"--processor", absl::StrCat(rank % processors)});
    absl::StatusOr<ChildProcess> process = ChildProcess::spawn(std::move(words));
    if (!process.ok()) return process.status();
    processes_.push_back(*std::move(process));
  }
  absl::StatusOr<Json> address = processes_[0].ask({{"do", "listen"}}, kPatienceSeconds);
  if (!address.ok()) return of_rank(0, address.status());
  absl::StatusOr<std::vector<Json>> joined =
      ask_all({{"do", "join"}, {"address", address->at("address")}}, kPatienceSeconds);
  if (!joined.ok()) return joined.status();
  join_seconds_ = join_seconds(*joined);
  return absl::OkStatus();
}

void RankGroup::pause() {
  for (ChildProcess& process : processes_) process.signal(SIGSTOP);
}

void RankGroup::resume() {
  for (ChildProcess& process : processes_) process.signal(SIGCONT);
}

// Returns the answers by rank, or the first error. Unimplemented is returned when all ranks have
// answered, another error at once.
absl::StatusOr<std::vector<Json>> RankGroup::ask_all(const Json& command, double seconds) {
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    if (const absl::Status told = processes_[rank].tell(command); !told.ok()) {
      return of_rank(rank, told);
    }
  }
  std::vector<size_t> waiting(processes_.size());
  std::iota(waiting.begin(), waiting.end(), 0);
  std::vector<Json> answers(processes_.size());
  absl::Status missing;
  while (!waiting.empty()) {
    std::vector<const Channel*> channels;
    for (const size_t rank : waiting) channels.push_back(&processes_[rank].channel());
    const absl::StatusOr<size_t> ready = Channel::wait_for_any(channels, seconds);
    if (!ready.ok()) return of_rank(waiting[0], ready.status());
    const size_t rank = waiting[*ready];
    waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(*ready));
    absl::StatusOr<Json> answer = processes_[rank].answer(seconds);
    if (answer.ok()) {
      answers[rank] = *std::move(answer);
    } else if (absl::IsUnimplemented(answer.status())) {
      missing = of_rank(rank, answer.status());
    } else {
      return of_rank(rank, answer.status());
    }
  }
  if (!missing.ok()) return missing;
  return answers;
}

absl::StatusOr<BlockResult> RankGroup::run_counted(const Row& row, const Repetitions& repetitions,
                                                   double seconds) {
  absl::StatusOr<std::vector<Json>> answers = ask_all({{"do", "run"},
                                                       {"row", row.name},
                                                       {"warm_up", repetitions.warm_up},
                                                       {"timed", repetitions.timed}},
                                                      seconds + kPatienceSeconds);
  if (!answers.ok()) return answers.status();
  std::vector<BlockResult> blocks;
  for (const Json& answer : *answers) blocks.push_back(answer.at("result").get<BlockResult>());
  BlockResult result = of_all_ranks(blocks);
  result.join_seconds = join_seconds_;
  seconds_per_call_[row.name] = result.seconds / static_cast<double>(result.calls);
  return result;
}

absl::Status RankGroup::estimate(const Row& row, double seconds) {
  for (int64_t calls = fewest_calls(row);; calls *= kTrialGrowth) {
    absl::StatusOr<BlockResult> trial = run_counted(row, {.warm_up = 1, .timed = calls}, seconds);
    if (!trial.ok()) return trial.status();
    if (trial->seconds >= kTrialShare * seconds) return absl::OkStatus();
  }
}

absl::StatusOr<BlockResult> RankGroup::run(const Row& row, double seconds) {
  if (processes_.empty()) return absl::FailedPreconditionError("not started");
  if (row.processes != options_.ranks) {
    return absl::UnimplementedError(absl::StrCat("a row of ", row.processes, " ranks"));
  }
  absl::StatusOr<BlockResult> result = [&]() -> absl::StatusOr<BlockResult> {
    if (!seconds_per_call_.contains(row.name)) WEFT_RETURN_IF_ERROR(estimate(row, seconds));
    const double fitting = seconds / seconds_per_call_.at(row.name);
    const int64_t timed = std::max(fewest_calls(row), static_cast<int64_t>(fitting));
    const int64_t warm_up =
        std::max<int64_t>(1, static_cast<int64_t>(kWarmUpShare * static_cast<double>(timed)));
    return run_counted(row, {.warm_up = warm_up, .timed = timed}, seconds);
  }();
  if (!result.ok() && !absl::IsUnimplemented(result.status())) stop_at_once();
  return result;
}

void RankGroup::stop() {
  resume();
  // Tell all before waiting for one: to leave a group, a process can need the others.
  for (ChildProcess& process : processes_) process.tell({{"do", "quit"}}).IgnoreError();
  processes_.clear();
  seconds_per_call_.clear();
}

void RankGroup::stop_at_once() {
  for (ChildProcess& process : processes_) process.signal(SIGKILL);
  stop();
}

BlockResult of_all_ranks(const std::vector<BlockResult>& blocks) {
  BlockResult result = blocks.at(0);
  for (size_t i = 1; i < blocks.size(); ++i) {
    const BlockResult& block = blocks[i];
    result.seconds = std::max(result.seconds, block.seconds);
    result.median_us = std::max(result.median_us, block.median_us);
    result.p99_us = std::max(result.p99_us, block.p99_us);
    result.local_us = std::max(result.local_us, block.local_us);
    result.communication_us = std::max(result.communication_us, block.communication_us);
    result.usage += block.usage;
    result.bytes += block.bytes;
    result.footprint.threads = std::max(result.footprint.threads, block.footprint.threads);
    result.footprint.descriptors =
        std::max(result.footprint.descriptors, block.footprint.descriptors);
    result.footprint.private_mib =
        std::max(result.footprint.private_mib, block.footprint.private_mib);
    result.footprint.shared_mib += block.footprint.shared_mib;
  }
  return result;
}

}  // namespace weft::bench
