// Parses the command line of weft_launch.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/environment.h"
#include "weft/worker/launch/supervisor_core.h"

namespace weft::launch {

// `count` consecutive ranks with one ROLE_NAME.
struct Role {
  std::string name;
  uint32_t count = 0;

  friend bool operator==(const Role&, const Role&) = default;
};

struct LaunchOptions {
  uint32_t nodes = 1;       // machines, with one launcher each
  uint32_t node = 0;        // this one
  uint32_t processes = 1;   // on this machine
  std::vector<Role> roles;  // their counts add up to `processes`
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;   // 0: a free one; never with several nodes
  bool c10d_store = false;    // node 0 also serves a TCPStore
  bool certificates = false;  // each worker gets one of its own, where workers use TLS
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(5);  // of the other nodes
  std::chrono::nanoseconds node_timeout = std::chrono::seconds(10);
  std::string run_id;  // "": a random one
  FailurePolicy on_failure = FailurePolicy::kEnd;
  uint32_t max_restarts = 0;
  std::chrono::nanoseconds grace = std::chrono::seconds(10);
  bool prefix = true;
  std::vector<std::string> program;  // and its arguments
};

struct CommandLine {
  std::optional<LaunchOptions> options;  // nullopt: print `text` and exit with `exit_code`
  std::string text;
  int exit_code = 0;  // 0 after --help, 2 after a mistake
};

// `arguments` does not contain the program's own name. Nodes, processes and the store's address
// that it does not name are those of the environment, if a launcher of clusters has started this
// one.
CommandLine parse_command_line(const std::vector<std::string>& arguments,
                               const EnvironmentReader& read = read_process_environment);

}  // namespace weft::launch
