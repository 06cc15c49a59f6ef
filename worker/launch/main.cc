// weft_launch: starts a group of processes on this machine, and hosts their rendezvous store.

#include <cstdio>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/worker/launch/launch_options.h"
#include "weft/worker/launch/supervisor.h"
#include "weft/worker/store/rendezvous.h"

namespace {

constexpr int kCouldNotLaunch = 1;
constexpr int kNotExecutable = 126;
constexpr int kNoProgram = 127;

std::string random_run_id() {
  std::random_device device;
  return absl::StrCat("weft-", absl::Hex(device(), absl::kZeroPad8));
}

int fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "weft_launch: %s\n", std::string(status.message()).c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  weft::launch::CommandLine command_line =
      weft::launch::parse_command_line(std::vector<std::string>(argv + 1, argv + argc));
  if (!command_line.options) {
    std::fputs(command_line.text.c_str(), command_line.exit_code == 0 ? stdout : stderr);
    return command_line.exit_code;
  }
  // Call it before the store starts its threads.
  auto signals = weft::launch::take_signals();
  if (!signals.ok()) return fail(signals.status(), kCouldNotLaunch);

  weft::launch::GroupPlace place;
  place.options = *std::move(command_line.options);
  if (place.options.run_id.empty()) place.options.run_id = random_run_id();
  weft::RendezvousOptions rendezvous;
  rendezvous.host = place.options.master_addr;
  rendezvous.port = place.options.master_port;
  auto hosted = weft::host_rendezvous_store(rendezvous);
  if (!hosted.ok()) return fail(hosted.status(), kCouldNotLaunch);
  place.options.master_port = hosted->port;

  weft::launch::Supervisor supervisor(std::move(place), *std::move(signals));
  const absl::StatusOr<int> code = supervisor.run();
  if (code.ok()) return *code;
  if (absl::IsNotFound(code.status())) return fail(code.status(), kNoProgram);
  if (absl::IsPermissionDenied(code.status())) return fail(code.status(), kNotExecutable);
  return fail(code.status(), kCouldNotLaunch);
}
