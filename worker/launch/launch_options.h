// Parses the command line of weft_launch.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/worker/launch/supervisor_core.h"

namespace weft::launch {

// `count` consecutive ranks with one ROLE_NAME.
struct Role {
  std::string name;
  uint32_t count = 0;
};

struct LaunchOptions {
  uint32_t processes = 1;
  std::vector<Role> roles;  // their counts add up to `processes`
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;  // 0: a free one
  std::string run_id;        // "": a random one
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

// `arguments` does not contain the program's own name.
CommandLine parse_command_line(const std::vector<std::string>& arguments);

}  // namespace weft::launch
