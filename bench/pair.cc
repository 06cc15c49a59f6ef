#include "weft/bench/pair.h"

#include <cerrno>
#include <chrono>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/child.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;

constexpr double kQuitSeconds = 5;
constexpr auto kPollEvery = std::chrono::milliseconds(5);
constexpr int kReleasePolls = 400;

// Waits for the end of a child that was told to quit; kills it when it does not obey.
void reap(pid_t child) {
  const auto give_up =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(kQuitSeconds);
  while (std::chrono::steady_clock::now() < give_up) {
    if (waitpid(child, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(kPollEvery);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace

absl::StatusOr<ProcessPair::Process> ProcessPair::spawn(const std::string& role,
                                                        int processor) const {
  absl::StatusOr<std::pair<Channel, Channel>> ends = Channel::make_pair();
  if (!ends.ok()) return ends.status();
  const std::string& name = options_.child_name.empty() ? options_.name : options_.child_name;
  std::vector<std::string> words = {options_.program, "contestant", "--name", name, "--role", role};
  if (options_.pin) words.insert(words.end(), {"--processor", absl::StrCat(processor)});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends->second.socket(), kDriverSocket);
  pid_t id = 0;
  const int error =
      posix_spawn(&id, options_.program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", options_.program));
  return Process{id, std::move(ends->first)};
}

absl::StatusOr<Json> ProcessPair::ask(Process& process, const Json& command, double seconds) const {
  WEFT_RETURN_IF_ERROR(process.channel.send(command));
  absl::StatusOr<Json> answer = process.channel.receive(seconds);
  if (!answer.ok()) return answer.status();
  WEFT_RETURN_IF_ERROR(status_of_answer(*answer));
  return answer;
}

absl::Status ProcessPair::start() {
  stop();
  absl::StatusOr<Process> server = spawn("server", 1);
  if (!server.ok()) return server.status();
  server_.emplace(*std::move(server));
  absl::StatusOr<Process> client = spawn("client", 0);
  if (!client.ok()) return client.status();
  client_.emplace(*std::move(client));

  absl::StatusOr<Json> address = ask(*server_, {{"do", "listen"}});
  if (!address.ok()) return address.status();
  // Both at once: either side may wait for the other before it answers.
  WEFT_RETURN_IF_ERROR(server_->channel.send({{"do", "serve"}}));
  WEFT_RETURN_IF_ERROR(
      ask(*client_, {{"do", "connect"}, {"address", address->at("address")}}).status());
  absl::StatusOr<Json> serving = server_->channel.receive(kPatienceSeconds);
  if (!serving.ok()) return serving.status();
  return status_of_answer(*serving);
}

void ProcessPair::pause() { signal_both(SIGSTOP); }
void ProcessPair::resume() { signal_both(SIGCONT); }

void ProcessPair::signal_both(int signal) {
  for (const std::optional<Process>* process : {&server_, &client_}) {
    if (process->has_value()) kill((*process)->id, signal);
  }
}

absl::StatusOr<Usage> ProcessPair::server_usage() {
  absl::StatusOr<Json> answer = ask(*server_, {{"do", "usage"}});
  if (!answer.ok()) return answer.status();
  return answer->at("usage").get<Usage>();
}

absl::Status ProcessPair::wait_until_objects_are_gone() {
  for (int poll = 0; poll < kReleasePolls; ++poll) {
    absl::StatusOr<Json> answer = ask(*server_, {{"do", "live"}});
    if (!answer.ok()) return answer.status();
    if (answer->at("objects") == 0) return absl::OkStatus();
    std::this_thread::sleep_for(kPollEvery);
  }
  return absl::InternalError("dropped references keep their values alive on the server");
}

absl::StatusOr<BlockResult> ProcessPair::run(const Row& row, double seconds) {
  if (!server_ || !client_) return absl::FailedPreconditionError("not started");
  absl::StatusOr<Usage> before = server_usage();
  if (!before.ok()) return before.status();
  absl::StatusOr<Json> answer =
      ask(*client_, {{"do", "run"}, {"row", row.name}, {"seconds", seconds}},
          seconds + kPatienceSeconds);
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
  // Both are told before either is awaited: leaving a group can need the other side.
  for (std::optional<Process>* process : {&client_, &server_}) {
    if (process->has_value()) (*process)->channel.send({{"do", "quit"}}).IgnoreError();
  }
  for (std::optional<Process>* process : {&client_, &server_}) {
    if (process->has_value()) reap((*process)->id);
    process->reset();
  }
}

}  // namespace weft::bench
