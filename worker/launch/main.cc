// weft_launch: starts a group of processes on this machine, or its part of a group on several
// machines. The launcher of the first machine hosts the group's rendezvous store.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <signal.h>
#include <stdlib.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/security/job_secret.h"
#include "weft/sockets/tcp_port.h"
#include "weft/store/rendezvous.h"
#include "weft/worker/launch/certificates/worker_certificates.h"
#include "weft/worker/launch/child_process.h"
#include "weft/worker/launch/launch_options.h"
#include "weft/worker/launch/node_group.h"
#include "weft/worker/launch/supervisor.h"

namespace weft::launch {
namespace {

constexpr char kC10dStore[] = "weft_c10d_store";
// Of connecting to the store of another machine, and the most of one call. Signals are looked at
// between two calls.
constexpr absl::Duration kStoreTimeout = absl::Seconds(5);
constexpr int kCallsWithoutHeartbeat = 5;
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

struct OpenStore {
  std::unique_ptr<StoreHandle> store;
  RendezvousOptions place;
};

// Node 0 hosts the store.
absl::StatusOr<OpenStore> try_to_open(const LaunchOptions& options, SecurityMode security) {
  OpenStore result;
  result.place.host = options.master_addr;
  result.place.port = options.master_port;
  result.place.security = security;
  result.place.run_id = options.run_id;
  // A launcher whose calls take long must still show in time that it lives.
  result.place.call_timeout =
      std::min(kStoreTimeout, absl::FromChrono(options.node_timeout) / kCallsWithoutHeartbeat);
  if (options.node == 0) {
    result.place.timeout = absl::ZeroDuration();  // host_or_connect tries again
    WEFT_ASSIGN_OR_RETURN(HostedStore hosted, host_rendezvous_store(result.place));
    result.place.port = hosted.port;
    result.store = std::move(hosted.store);
    return result;
  }
  result.place.timeout = kStoreTimeout;
  WEFT_ASSIGN_OR_RETURN(result.store, connect_rendezvous_store(result.place));
  return result;
}

// The launchers of the other nodes may be there before that of node 0, and all of them before the
// name service knows node 0.
absl::StatusOr<OpenStore> host_or_connect(const LaunchOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const SecurityMode security, find_security_mode());
  const auto deadline = std::chrono::steady_clock::now() + options.join_timeout;
  while (true) {
    absl::StatusOr<OpenStore> store = try_to_open(options, security);
    const bool may_come =
        absl::IsDeadlineExceeded(store.status()) || absl::IsNotFound(store.status());
    const bool too_late = std::chrono::steady_clock::now() >= deadline;
    if (store.ok() || options.nodes == 1 || !may_come || too_late) return store;
    if (asked_to_end()) return absl::CancelledError("interrupted while it waited for node 0");
    std::this_thread::sleep_for(kPause);
  }
}

NodeRecord record_of(const LaunchOptions& options,
                     const std::optional<WorkerCertificates>& certificates) {
  NodeRecord self = {.host = host_name(),
                     .nodes = options.nodes,
                     .roles = options.roles,
                     .run_id = options.run_id,
                     .token = absl::StrCat(getpid(), "-", random_text())};
  if (certificates) self.public_keys = certificates->public_keys();
  return self;
}

absl::StatusOr<std::unique_ptr<NodeGroup>> join_group(
    const OpenStore& open, const LaunchOptions& options,
    std::optional<WorkerCertificates>& certificates) {
  RendezvousStore& store = *open.store;
  const NodeRecord self = record_of(options, certificates);
  NodeGroupOptions group;
  if (certificates) {
    group.on_all_met = [&](const std::vector<NodeRecord>& records) {
      return certificates->exchange(store, open.place, options.node, records);
    };
  }
  group.node = options.node;
  group.join_timeout = options.join_timeout;
  group.lost_after = static_cast<uint32_t>(options.node_timeout / group.interval);
  return NodeGroup::join(store, self, group, asked_to_end);
}

// The port of c10d's own store. Over TCP, the job's store has the port before it.
uint16_t c10d_port(const RendezvousOptions& store) {
  constexpr uint16_t kLast = 65535;
  const bool is_taken = absl::EndsWith(rendezvous_address(store), absl::StrCat(":", store.port));
  if (!is_taken) return store.port;
  return store.port == kLast ? kLast - 1 : store.port + 1;
}

// weft_c10d_store, while this object exists. It also dies with the thread that started it.
class C10dStoreProcess {
 public:
  ~C10dStoreProcess() {
    // If it has ended before, the supervisor has reaped it, and the number may be another
    // process's.
    if (pid_ <= 0 || waitpid(pid_, nullptr, WNOHANG) != 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // Its port is open when this returns.
  absl::Status start(const std::string& host, uint16_t port);

 private:
  pid_t pid_ = 0;
};

absl::Status C10dStoreProcess::start(const std::string& host, uint16_t port) {
  WEFT_ASSIGN_OR_RETURN(const ListeningPort listening, listen_on(host, port));
  StartRequest request;
  std::error_code ignored;  // then it is looked for in the current folder
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  WEFT_ASSIGN_OR_RETURN(request.path, find_program((self.parent_path() / kC10dStore).string()));
  request.arguments = {kC10dStore, absl::StrCat(port)};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    request.environment.emplace_back(*variable);
  }
  request.capture_output = false;
  request.input = listening.socket.get();
  WEFT_ASSIGN_OR_RETURN(const StartedProcess started, start_process(request));
  pid_ = started.pid;
  return absl::OkStatus();
}

// A pipe can be read only once, but other processes may need the secret.
absl::StatusOr<std::optional<KeptFile>> keep_secret(const LaunchOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const SecurityMode security, find_security_mode());
  if (security == SecurityMode::kNone && options.certificates) {
    return absl::InvalidArgumentError(
        "--certificates: the workers use none with WEFT_SECURITY=none");
  }
  if (security == SecurityMode::kNone) return std::nullopt;
  WEFT_ASSIGN_OR_RETURN(auto kept, keep_secret_of_pipe());
  if (kept) setenv("WEFT_SECRET_FILE", kept->path.c_str(), 1);
  return kept;
}

// nullopt: the processes get none.
absl::StatusOr<std::optional<WorkerCertificates>> make_keys(const LaunchOptions& options) {
  if (!options.certificates) return std::nullopt;
  WEFT_ASSIGN_OR_RETURN(WorkerCertificates made, WorkerCertificates::create(options.processes));
  return made;
}

int run(LaunchOptions options) {
  auto secret = keep_secret(options);
  if (!secret.ok()) return fail(secret.status(), kCouldNotLaunch);
  // Call it before the store starts its threads.
  auto signals = take_signals();
  if (!signals.ok()) return fail(signals.status(), kCouldNotLaunch);
  const auto store = host_or_connect(options);
  if (!store.ok()) return fail(store.status(), code_of_joining(store.status()));

  // Before the nodes meet, so that a failure ends the others in time.
  const uint16_t master_port = c10d_port(store->place);
  C10dStoreProcess c10d_store;
  if (options.c10d_store && options.node == 0) {
    const absl::Status started = c10d_store.start(options.master_addr, master_port);
    if (!started.ok()) return fail(prepend("--c10d-store: ", started), kCouldNotLaunch);
  }

  auto certificates = make_keys(options);
  if (!certificates.ok()) return fail(certificates.status(), kCouldNotLaunch);
  std::unique_ptr<NodeGroup> nodes;
  NodePlace place = place_of_node({{.nodes = 1, .roles = options.roles}}, 0);
  if (options.nodes > 1) {
    auto joined = join_group(*store, options, *certificates);
    if (!joined.ok()) {
      // The others read why, before the store goes.
      if (options.node == 0) std::this_thread::sleep_for(kFarewell);
      return fail(joined.status(), code_of_joining(joined.status()));
    }
    nodes = *std::move(joined);
    place = nodes->place();
    options.run_id = nodes->run_id();
  }
  if (options.run_id.empty()) options.run_id = "weft-" + random_text();
  std::string workers_store = rendezvous_address(store->place);
  std::vector<std::vector<std::string>> variables;
  if (certificates->has_value()) {
    WorkerCertificates& made = **certificates;
    if (nodes == nullptr) {
      const absl::Status exchanged =
          made.exchange(*store->store, store->place, 0, {record_of(options, *certificates)});
      if (!exchanged.ok()) return fail(exchanged, kCouldNotLaunch);
    }
    workers_store = made.store();
    variables = made.variables();
    *secret = std::nullopt;  // with it, a worker could call the launchers' store
  }

  Supervisor supervisor({.options = std::move(options),
                         .nodes = std::move(place),
                         .store = std::move(workers_store),
                         .master_port = master_port,
                         .c10d_store = c10d_store.pid(),
                         .certificates = std::move(variables)},
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
