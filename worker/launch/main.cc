// weft_launch: starts a group of processes on this machine, or its part of a group on several
// machines. The launcher of the first machine hosts the group's rendezvous store.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/worker/launch/launch_options.h"
#include "weft/worker/launch/node_group.h"
#include "weft/worker/launch/supervisor.h"
#include "weft/worker/store/rendezvous.h"

namespace weft::launch {
namespace {

constexpr int kCouldNotLaunch = 1;
// Of one call on the store of another machine. Signals are looked at between two calls.
constexpr absl::Duration kStoreTimeout = absl::Seconds(5);
// Between two tries to open the store.
constexpr std::chrono::milliseconds kPause(200);
// Longer than the others take to look again.
constexpr std::chrono::seconds kFarewell(1);

std::string random_text() {
  std::random_device device;
  return absl::StrCat(absl::Hex(device(), absl::kZeroPad8));
}

std::string host_name() {
  char name[256] = "";
  (void)gethostname(name, sizeof(name) - 1);
  return name;
}

int fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "weft_launch: %s\n", std::string(status.message()).c_str());
  return code;
}

// The signal that should end the launcher and waits to be read; 0: none.
int waiting_signal() {
  sigset_t waiting;
  sigpending(&waiting);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    if (sigismember(&waiting, signal) == 1) return signal;
  }
  return 0;
}

bool asked_to_end() { return waiting_signal() != 0; }

int code_of_joining(const absl::Status& failed) {
  return absl::IsCancelled(failed) && asked_to_end() ? 128 + waiting_signal() : kCouldNotLaunch;
}

// Node 0 hosts the store.
absl::StatusOr<std::unique_ptr<RendezvousStore>> try_to_open(LaunchOptions& options) {
  RendezvousOptions rendezvous;
  rendezvous.host = options.master_addr;
  rendezvous.port = options.master_port;
  if (options.node == 0) {
    WEFT_ASSIGN_OR_RETURN(HostedStore hosted, host_rendezvous_store(rendezvous));
    options.master_port = hosted.port;
    return std::move(hosted.store);
  }
  rendezvous.timeout = kStoreTimeout;
  return connect_rendezvous_store(rendezvous);
}

// The launchers of the other nodes may be there before that of node 0, and all of them before the
// name service knows node 0.
absl::StatusOr<std::unique_ptr<RendezvousStore>> open_store(LaunchOptions& options) {
  const auto deadline = std::chrono::steady_clock::now() + options.join_timeout;
  while (true) {
    auto store = try_to_open(options);
    const bool may_come =
        absl::IsDeadlineExceeded(store.status()) || absl::IsNotFound(store.status());
    const bool too_late = std::chrono::steady_clock::now() >= deadline;
    if (store.ok() || options.nodes == 1 || !may_come || too_late) return store;
    if (asked_to_end()) return absl::CancelledError("interrupted while it waited for node 0");
    std::this_thread::sleep_for(kPause);
  }
}

absl::StatusOr<std::unique_ptr<NodeGroup>> join_nodes(RendezvousStore& store,
                                                      const LaunchOptions& options) {
  const NodeRecord self = {.host = host_name(),
                           .nodes = options.nodes,
                           .roles = options.roles,
                           .run_id = options.run_id,
                           .token = absl::StrCat(getpid(), "-", random_text())};
  NodeGroupOptions group;
  group.node = options.node;
  group.join_timeout = options.join_timeout;
  group.lost_after = static_cast<uint32_t>(options.node_timeout / group.interval);
  return NodeGroup::join(store, self, group, asked_to_end);
}

int run(LaunchOptions options) {
  // Call it before the store starts its threads.
  auto signals = take_signals();
  if (!signals.ok()) return fail(signals.status(), kCouldNotLaunch);
  const auto store = open_store(options);
  if (!store.ok()) return fail(store.status(), code_of_joining(store.status()));

  std::unique_ptr<NodeGroup> nodes;
  NodePlace place = place_of_node({{.nodes = 1, .roles = options.roles}}, 0);
  if (options.nodes > 1) {
    auto joined = join_nodes(**store, options);
    if (!joined.ok()) {
      // The others read why, before the store goes.
      if (options.node == 0) std::this_thread::sleep_for(kFarewell);
      return fail(joined.status(), code_of_joining(joined.status()));
    }
    nodes = *std::move(joined);
    place = nodes->place();
    options.run_id = nodes->run_id();
  }
  // Each node of a group that nobody has named gives it the same name.
  if (options.run_id.empty()) options.run_id = nodes ? "weft" : "weft-" + random_text();

  Supervisor supervisor({.options = std::move(options), .nodes = std::move(place)},
                        *std::move(signals), nodes.get());
  const absl::StatusOr<int> code = supervisor.run();
  if (code.ok()) return *code;
  return fail(code.status(), exit_code_of(code.status()));
}

}  // namespace
}  // namespace weft::launch

int main(int argc, char** argv) {
  weft::launch::CommandLine command_line =
      weft::launch::parse_command_line(std::vector<std::string>(argv + 1, argv + argc));
  if (!command_line.options) {
    std::fputs(command_line.text.c_str(), command_line.exit_code == 0 ? stdout : stderr);
    return command_line.exit_code;
  }
  return weft::launch::run(*std::move(command_line.options));
}
