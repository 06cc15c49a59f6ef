#include "weft/bench/processes/child_process.h"

#include <chrono>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;

constexpr double kQuitSeconds = 5;
constexpr auto kPollEvery = std::chrono::milliseconds(5);

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::spawn(std::vector<std::string> words) {
  absl::StatusOr<std::pair<Channel, Channel>> ends = Channel::make_pair();
  if (!ends.ok()) return ends.status();
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends->second.socket(), kDriverSocket);
  pid_t id = 0;
  const int error =
      posix_spawn(&id, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", words[0]));
  return ChildProcess(id, std::move(ends->first));
}

ChildProcess::~ChildProcess() {
  if (id_ == 0) return;
  const auto give_up =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(kQuitSeconds);
  while (std::chrono::steady_clock::now() < give_up) {
    if (waitpid(id_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(kPollEvery);
  }
  kill(id_, SIGKILL);
  waitpid(id_, nullptr, 0);
}

absl::StatusOr<Json> ChildProcess::ask(const Json& command, double seconds) {
  WEFT_RETURN_IF_ERROR(tell(command));
  return answer(seconds);
}

absl::StatusOr<Json> ChildProcess::answer(double seconds) {
  absl::StatusOr<Json> answer = channel_.receive(seconds);
  if (!answer.ok()) return answer.status();
  WEFT_RETURN_IF_ERROR(status_of_answer(*answer));
  return answer;
}

void ChildProcess::signal(int signal) {
  if (id_ != 0) kill(id_, signal);
}

}  // namespace weft::bench
