#include "weft/bench/processes/pair.h"

#include <chrono>
#include <signal.h>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/child.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;

constexpr auto kLookEvery = std::chrono::milliseconds(5);
constexpr int kReleasePolls = 400;

}  // namespace

absl::StatusOr<ChildProcess> ProcessPair::spawn(const std::string& role, int processor) const {
  const std::string& name = options_.child_name.empty() ? options_.name : options_.child_name;
  std::vector<std::string> words = {options_.program, "contestant", "--name", name, "--role", role};
  if (options_.pin) words.insert(words.end(), {"--processor", absl::StrCat(processor)});
  return ChildProcess::spawn(std::move(words));
}

absl::Status ProcessPair::start() {
  stop();
  absl::StatusOr<ChildProcess> server = spawn("server", 1);
  if (!server.ok()) return server.status();
  server_.emplace(*std::move(server));
  absl::StatusOr<ChildProcess> client = spawn("client", 0);
  if (!client.ok()) return client.status();
  client_.emplace(*std::move(client));

  absl::StatusOr<Json> address = server_->ask({{"do", "listen"}}, kPatienceSeconds);
  if (!address.ok()) return address.status();
  // Tell the server first and do not wait: each process may wait for the other before it answers.
  WEFT_RETURN_IF_ERROR(server_->tell({{"do", "serve"}}));
  WEFT_RETURN_IF_ERROR(
      client_->ask({{"do", "connect"}, {"address", address->at("address")}}, kPatienceSeconds)
          .status());
  return server_->answer(kPatienceSeconds).status();
}

void ProcessPair::pause() { signal_both(SIGSTOP); }
void ProcessPair::resume() { signal_both(SIGCONT); }

void ProcessPair::signal_both(int signal) {
  for (std::optional<ChildProcess>* process : {&server_, &client_}) {
    if (process->has_value()) (*process)->signal(signal);
  }
}

absl::StatusOr<Usage> ProcessPair::server_usage() {
  absl::StatusOr<Json> answer = server_->ask({{"do", "usage"}}, kPatienceSeconds);
  if (!answer.ok()) return answer.status();
  return answer->at("usage").get<Usage>();
}

absl::Status ProcessPair::wait_until_objects_are_gone() {
  for (int poll = 0; poll < kReleasePolls; ++poll) {
    absl::StatusOr<Json> answer = server_->ask({{"do", "live"}}, kPatienceSeconds);
    if (!answer.ok()) return answer.status();
    if (answer->at("objects") == 0) return absl::OkStatus();
    std::this_thread::sleep_for(kLookEvery);
  }
  return absl::InternalError("dropped references keep their values alive on the server");
}

absl::StatusOr<BlockResult> ProcessPair::run(const Row& row, double seconds) {
  if (!server_ || !client_) return absl::FailedPreconditionError("not started");
  absl::StatusOr<Usage> before = server_usage();
  if (!before.ok()) return before.status();
  absl::StatusOr<Json> answer = client_->ask(
      {{"do", "run"}, {"row", row.name}, {"seconds", seconds}}, seconds + kPatienceSeconds);
  if (!answer.ok()) return answer.status();
  absl::StatusOr<Usage> after = server_usage();
  if (!after.ok()) return after.status();
  if (row.work == Work::kRref) WEFT_RETURN_IF_ERROR(wait_until_objects_are_gone());

  BlockResult result = answer->at("result").get<BlockResult>();
  result.usage += *after - *before;
  return result;
}

void ProcessPair::stop() {
  resume();
  // Tell both before waiting for one: to leave a group, a process can need the other.
  for (std::optional<ChildProcess>* process : {&client_, &server_}) {
    if (process->has_value()) (*process)->tell({{"do", "quit"}}).IgnoreError();
  }
  client_.reset();
  server_.reset();
}

}  // namespace weft::bench
