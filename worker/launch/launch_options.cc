#include "weft/worker/launch/launch_options.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/launcher/launch_environment.h"

namespace weft::launch {
namespace {

constexpr uint32_t kMaxProcesses = 1024;
constexpr uint32_t kDefaultRestarts = 3;
constexpr uint32_t kMaxRestarts = 1000000;
constexpr uint32_t kMaxNodes = 1024;
constexpr double kMaxSeconds = 86400;
constexpr uint16_t kPort = 29500;  // of the store, with several nodes

// Each of these throws CLI::ValidationError. CLI11 adds the option's name to the message.

void parse_policy(const std::string& text, LaunchOptions& options) {
  options.max_restarts = 0;
  if (text == "end") {
    options.on_failure = FailurePolicy::kEnd;
  } else if (text == "continue") {
    options.on_failure = FailurePolicy::kContinue;
  } else {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    options.on_failure = FailurePolicy::kRestart;
    options.max_restarts = kDefaultRestarts;
    const bool good = parts[0] == "restart" &&
                      (parts.size() == 1 || (absl::SimpleAtoi(parts[1], &options.max_restarts) &&
                                             options.max_restarts <= kMaxRestarts));
    if (!good) {
      throw CLI::ValidationError("--on-failure",
                                 "'" + text + "' is none of end, continue, restart, restart=N");
    }
  }
}

std::vector<Role> parse_roles(const std::string& text) {
  std::vector<Role> roles;
  std::set<std::string> names;
  for (const auto& part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> fields = absl::StrSplit(part, absl::MaxSplits(':', 1));
    Role role;
    role.name = fields[0];
    const bool good = fields.size() == 2 && !role.name.empty() &&
                      absl::SimpleAtoi(fields[1], &role.count) && role.count > 0 &&
                      role.count <= kMaxProcesses;
    if (!good) {
      throw CLI::ValidationError("--roles", "'" + std::string(part) + "' is not NAME:COUNT");
    }
    if (!names.insert(role.name).second) {
      throw CLI::ValidationError("--roles", "'" + role.name + "' comes twice");
    }
    roles.push_back(std::move(role));
  }
  return roles;
}

void settle_counts(const std::string& roles, bool count_given, LaunchOptions& options) {
  if (roles.empty()) {
    options.roles = {{"default", options.processes}};
    return;
  }
  options.roles = parse_roles(roles);
  uint32_t total = 0;
  for (const Role& role : options.roles) total += role.count;
  if (count_given && total != options.processes) {
    throw CLI::ValidationError(
        "--roles", absl::StrCat("the counts add up to ", total, ", not to --nproc-per-node ",
                                options.processes));
  }
  options.processes = total;
  if (total > kMaxProcesses) throw CLI::ValidationError("--roles", "too many processes");
}

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

// Which of the options with a default in the environment the user has given.
struct Given {
  const CLI::Option* nodes;
  const CLI::Option* node;
  const CLI::Option* processes;
  const CLI::Option* master_addr;
  const CLI::Option* master_port;
};

bool was_given(const CLI::Option* option) { return option->count() > 0; }

// If srun, mpirun or a pod of Kubernetes started this launcher, then each task, rank or pod is a
// node. Returns nullopt if nothing of the kind did.
std::optional<LaunchEnvironment> place_among_nodes(const Given& given, const LaunchOptions& options,
                                                   const EnvironmentReader& read) {
  const absl::StatusOr<Launcher> launcher = find_launcher(read);
  if (launcher.ok() && (*launcher == Launcher::kTorch || *launcher == Launcher::kSingle)) {
    return std::nullopt;
  }
  const absl::StatusOr<LaunchEnvironment> place =
      read_launch_environment([&](const char* name) -> std::optional<std::string> {
        const std::string variable = name;
        // How many processes the pod has is this launcher's matter.
        if (variable == "PET_NPROC_PER_NODE") return std::nullopt;
        if (variable == "MASTER_ADDR" && was_given(given.master_addr)) return options.master_addr;
        return read(name);
      });
  if (!place.ok()) throw CLI::ValidationError("environment", std::string(place.status().message()));
  return place->world_size == 1 ? std::nullopt : std::optional<LaunchEnvironment>(*place);
}

// Those of CUDA_VISIBLE_DEVICES, or else the device files. A container may have any of these.
uint32_t count_gpus(const EnvironmentReader& read) {
  if (const auto visible = read("CUDA_VISIBLE_DEVICES")) {
    // CUDA stops at the first entry that names no device, for example -1.
    uint32_t visible_count = 0;
    for (const absl::string_view device : absl::StrSplit(*visible, ',')) {
      uint32_t number = 0;
      const bool good = absl::SimpleAtoi(device, &number) || absl::StartsWith(device, "GPU-") ||
                        absl::StartsWith(device, "MIG-");
      if (!good || visible_count == kMaxProcesses) break;
      ++visible_count;
    }
    return visible_count;
  }
  uint32_t count = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = file.path().filename().string();
    uint32_t number = 0;
    count += absl::StartsWith(name, "nvidia") && absl::SimpleAtoi(name.substr(6), &number);
  }
  return std::min(count, kMaxProcesses);
}

// PET_NPROC_PER_NODE, as torchrun understands it. 0: the variable is not set.
uint32_t processes_of_environment(const EnvironmentReader& read) {
  const std::string text = read("PET_NPROC_PER_NODE").value_or("");
  if (text.empty()) return 0;
  const uint32_t gpus = count_gpus(read);
  if (text == "gpu" && gpus == 0)
    throw CLI::ValidationError("PET_NPROC_PER_NODE", "'gpu', but there is no GPU");
  if (text == "gpu" || (text == "auto" && gpus > 0)) return gpus;
  if (text == "cpu" || text == "auto") return std::max(1u, std::thread::hardware_concurrency());
  uint32_t count = 0;
  if (absl::SimpleAtoi(text, &count) && count > 0 && count <= kMaxProcesses) return count;
  throw CLI::ValidationError("PET_NPROC_PER_NODE", "'" + text + "' is no number, auto, cpu or gpu");
}

void settle_nodes(const Given& given, const EnvironmentReader& read, LaunchOptions& options) {
  if (!was_given(given.processes)) {
    if (const uint32_t count = processes_of_environment(read)) options.processes = count;
  }
  // --nnodes 1 is a group of this machine alone, whatever started the launcher.
  const bool alone = was_given(given.nodes) && options.nodes == 1;
  const bool complete =
      was_given(given.nodes) && was_given(given.node) && was_given(given.master_addr);
  const auto place = alone || complete ? std::nullopt : place_among_nodes(given, options, read);
  if (place && (!was_given(given.nodes) || options.nodes == place->world_size)) {
    options.nodes = place->world_size;
    if (!was_given(given.node)) options.node = place->rank;
    if (!was_given(given.master_addr)) options.master_addr = place->master_addr;
    if (!was_given(given.master_port)) options.master_port = place->master_port;
    if (options.run_id.empty() && place->launcher == Launcher::kSlurm) {
      options.run_id = absl::StrCat(place->run_id, "-", place->restart_count);
    }
  } else if (options.nodes > 1 && !complete) {
    throw CLI::ValidationError("--nnodes", "needs --node-rank and --master-addr");
  }
  if (options.node >= options.nodes) {
    throw CLI::ValidationError(
        "--node-rank", absl::StrCat(options.node, " is not below --nnodes ", options.nodes));
  }
  if (options.nodes > 1 && options.master_port == 0) options.master_port = kPort;
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments,
                               const EnvironmentReader& read) {
  LaunchOptions options;
  double grace = 10;
  double join_timeout = 300;
  double node_timeout = 10;
  bool no_prefix = false;
  std::string policy = "end";
  std::string roles;
  std::string certificates;

  CLI::App app(
      "Starts a group of processes, on this machine or on several, with torchrun's variables.",
      "weft_launch");
  app.footer("The program comes after --: weft_launch -n 2 -- ./train --epochs 3");
  CLI::Option* count = app.add_option("-n,--nproc-per-node", options.processes,
                                      "how many processes (default 1, or what --roles adds up to)")
                           ->check(CLI::Range(1u, kMaxProcesses));
  Given given;
  given.processes = count;
  given.nodes = app.add_option("--nnodes", options.nodes,
                               "number of machines (nodes), each with a launcher of its own "
                               "(default: what srun, mpirun or Kubernetes say, else 1)")
                    ->check(CLI::Range(1u, kMaxNodes));
  given.node = app.add_option("--node-rank", options.node, "which of them this one is, from 0");
  app.add_option("--roles", roles, "NAME:COUNT,...: ROLE_NAME for the first, the next ... ranks");
  given.master_addr =
      app.add_option("--master-addr", options.master_addr, "host of node 0, which has the store")
          ->capture_default_str();
  given.master_port =
      app.add_option("--master-port", options.master_port,
                     "port of the store (default: a free one; with several nodes 29500)");
  app.add_flag("--c10d-store", options.c10d_store,
               "also serve a TCPStore of c10d, for programs that use it without Weft");
  app.add_option("--certificates", certificates,
                 "per-worker: each rank proves rank and role by a certificate of its own "
                 "(docs/security.md)")
      ->check(CLI::IsMember({"per-worker"}));
  app.add_option("--join-timeout", join_timeout, "seconds to wait for the other nodes")
      ->capture_default_str()
      ->check(CLI::Range(0.0, kMaxSeconds));
  app.add_option("--node-timeout", node_timeout,
                 "seconds without a heartbeat of another node's launcher until the node is lost")
      ->capture_default_str()
      ->check(CLI::Range(2.0, kMaxSeconds));
  app.add_option("--run-id", options.run_id, "name of the job (default: a random one)");
  app.add_option("--on-failure", policy,
                 "end: the first failure ends the group (default); continue: the others go on; "
                 "restart[=N]: start the failed process again, at most N times (default 3)");
  app.add_option("--grace", grace, "seconds from the first signal to SIGKILL")
      ->capture_default_str()
      ->check(CLI::Range(0.0, kMaxSeconds));
  app.add_flag(
      "--no-prefix", no_prefix,
      "let the processes write to the launcher's own output instead of merging their lines");

  CommandLine result;
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  try {
    // CLI11 takes the arguments in reverse order.
    app.parse(std::vector<std::string>(std::make_reverse_iterator(separator), arguments.rend()));
    settle_nodes(given, read, options);
    parse_policy(policy, options);
    settle_counts(roles, count->count() > 0, options);
    if (options.master_addr.empty()) throw CLI::ValidationError("--master-addr", "is empty");
    if (separator == arguments.end() || separator + 1 == arguments.end()) {
      throw CLI::ValidationError("the program to start is missing", "put it after --");
    }
  } catch (const CLI::ExtrasError& error) {
    std::ostringstream text;
    (void)app.exit(error, text, text);
    result.exit_code = 2;
    result.text = text.str() + "The program comes after --: weft_launch -n 2 -- ./program\n";
    return result;
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    result.exit_code = app.exit(error, text, text) == 0 ? 0 : 2;
    result.text = text.str();
    return result;
  }
  options.grace = from_seconds(grace);
  options.join_timeout = from_seconds(join_timeout);
  options.node_timeout = from_seconds(node_timeout);
  options.prefix = !no_prefix;
  options.certificates = !certificates.empty();
  options.program.assign(separator + 1, arguments.end());
  result.options = std::move(options);
  return result;
}

}  // namespace weft::launch
