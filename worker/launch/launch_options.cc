#include "weft/worker/launch/launch_options.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <CLI/CLI.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weft::launch {
namespace {

constexpr uint32_t kMaxProcesses = 1024;
constexpr uint32_t kDefaultRestarts = 3;
constexpr uint32_t kMaxRestarts = 1000000;
constexpr double kMaxGraceSeconds = 86400;

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

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  LaunchOptions options;
  uint32_t nodes = 1;
  double grace = 10;
  bool no_prefix = false;
  std::string policy = "end";
  std::string roles;

  CLI::App app("Starts a group of processes on this machine, with torchrun's variables.",
               "weft_launch");
  app.footer("The program comes after --: weft_launch -n 2 -- ./train --epochs 3");
  CLI::Option* count = app.add_option("-n,--nproc-per-node", options.processes,
                                      "how many processes (default 1, or what --roles adds up to)")
                           ->check(CLI::Range(1u, kMaxProcesses));
  app.add_option("--nnodes", nodes,
                 "number of machines; only 1, `torchrun --no-python` starts more");
  app.add_option("--roles", roles, "NAME:COUNT,...: ROLE_NAME for the first, the next ... ranks");
  app.add_option("--master-addr", options.master_addr, "host of the rendezvous store")
      ->capture_default_str();
  app.add_option("--master-port", options.master_port, "its port, 0 for a free one")
      ->capture_default_str();
  app.add_option("--run-id", options.run_id, "name of the job (default: a random one)");
  app.add_option("--on-failure", policy,
                 "end: the first failure ends the group (default); continue: the others go on; "
                 "restart[=N]: start the failed process again, at most N times (default 3)");
  app.add_option("--grace", grace, "seconds from the first signal to SIGKILL")
      ->capture_default_str()
      ->check(CLI::Range(0.0, kMaxGraceSeconds));
  app.add_flag(
      "--no-prefix", no_prefix,
      "let the processes write to the launcher's own output instead of merging their lines");

  CommandLine result;
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  try {
    // CLI11 takes the arguments in reverse order.
    app.parse(std::vector<std::string>(std::make_reverse_iterator(separator), arguments.rend()));
    if (nodes != 1) {
      throw CLI::ValidationError(
          "--nnodes", "weft_launch starts one machine; use `torchrun --no-python` for several");
    }
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
  options.grace = std::chrono::nanoseconds(static_cast<int64_t>(grace * 1e9));
  options.prefix = !no_prefix;
  options.program.assign(separator + 1, arguments.end());
  result.options = std::move(options);
  return result;
}

}  // namespace weft::launch
