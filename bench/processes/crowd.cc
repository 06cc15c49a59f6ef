#include "weft/bench/processes/crowd.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/child.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;

absl::Status of_process(size_t process, const absl::Status& status) {
  const std::string who = process == 0 ? "the leader" : absl::StrCat("member ", process - 1);
  return absl::Status(status.code(), absl::StrCat(who, ": ", status.message()));
}

}  // namespace

absl::Status Crowd::start() {
  stop();
  const absl::Status started = start_all();
  if (!started.ok()) {
    for (ChildProcess& process : processes_) process.signal(SIGKILL);
    stop();
  }
  return started;
}

absl::Status Crowd::start_all() {
  for (int i = 0; i <= options_.members; ++i) {
    std::vector<std::string> words = options_.command;
    words.insert(words.end(), {"--role", i == 0 ? "leader" : "member"});
    absl::StatusOr<ChildProcess> process = ChildProcess::spawn(std::move(words));
    if (!process.ok()) return process.status();
    processes_.push_back(*std::move(process));
  }
  absl::StatusOr<Json> address = processes_[0].ask({{"do", "listen"}}, kPatienceSeconds);
  if (!address.ok()) return of_process(0, address.status());
  for (size_t i = 0; i < processes_.size(); ++i) {
    Json command{
        {"do", "join"}, {"address", address->at("address")}, {"members", options_.members}};
    if (i > 0) command["member"] = i - 1;
    if (absl::Status told = processes_[i].tell(command); !told.ok()) return of_process(i, told);
  }
  for (size_t i = 0; i < processes_.size(); ++i) {
    const absl::Status joined = processes_[i].answer(2 * kPatienceSeconds).status();
    if (!joined.ok()) return of_process(i, joined);
  }
  return absl::OkStatus();
}

void Crowd::pause() {
  for (ChildProcess& process : processes_) process.signal(SIGSTOP);
}

void Crowd::resume() {
  for (ChildProcess& process : processes_) process.signal(SIGCONT);
}

absl::StatusOr<Usage> Crowd::usage_of_all() {
  Usage usage;
  for (size_t i = 0; i < processes_.size(); ++i) {
    absl::StatusOr<Json> answer = processes_[i].ask({{"do", "usage"}}, kPatienceSeconds);
    if (!answer.ok()) return of_process(i, answer.status());
    usage += answer->at("usage").get<Usage>();
  }
  return usage;
}

int64_t Crowd::best_amount(Work work) const {
  int64_t best = 0;
  double rate = 0;
  const auto known = rates_.find(work);
  if (known == rates_.end()) return 0;
  for (const auto& [amount, rates] : known->second) {
    if (rates.mean() > rate) {
      rate = rates.mean();
      best = amount;
    }
  }
  return best;
}

absl::StatusOr<BlockResult> Crowd::run(const Row& row, double seconds) {
  if (processes_.empty()) return absl::FailedPreconditionError("not started");
  const int64_t amount = row.amount > 0 ? row.amount : best_amount(row.work);
  if (amount == 0) {
    if (unknown_.contains(row.work)) return absl::UnimplementedError("no such row");
    return absl::FailedPreconditionError("its best amount is known after other rows");
  }
  if (options_.amounts_are_members && amount > options_.members) {
    return absl::UnimplementedError(absl::StrCat("it has ", options_.members, " members"));
  }
  WEFT_ASSIGN_OR_RETURN(const Usage before, usage_of_all());
  absl::StatusOr<Json> answer = processes_[0].ask(
      {{"do", "run"}, {"row", row.name}, {"amount", amount}, {"seconds", seconds}},
      seconds + kPatienceSeconds + options_.patience_seconds);
  if (!answer.ok()) {
    if (absl::IsUnimplemented(answer.status())) unknown_.insert(row.work);
    return of_process(0, answer.status());
  }
  WEFT_ASSIGN_OR_RETURN(const Usage after, usage_of_all());
  BlockResult result = answer->at("result").get<BlockResult>();
  result.usage = after - before;
  if (row.amount > 0) {
    Rates& rates = rates_[row.work][amount];
    rates.sum += value_of(row, result);
    ++rates.rounds;
  }
  return result;
}

void Crowd::stop() {
  resume();
  // Tell all before waiting for one: to leave a group, a process can need the others.
  for (ChildProcess& process : processes_) process.tell({{"do", "quit"}}).IgnoreError();
  processes_.clear();
}

}  // namespace weft::bench
