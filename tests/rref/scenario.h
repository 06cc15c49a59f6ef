// Runs text scenarios of the RRef protocol: commands above, the exact log that they must give
// below.
//
// A scenario file is a list of blocks, separated by empty lines:
//
//   # a comment
//   w1 remote w2 -> r1
//   deliver all
//   ----
//   (one line for everything that happened)
//
// Commands are words; docs/rref_protocol.md lists them. The same files drive several targets: the
// bare core, and whole drivers. A command after `core:` or `driver:` is for that target only. If a
// target's log differs, it stands below a line `---- driver`. If the environment variable
// WEFT_REWRITE is set, the logs in the file are replaced by what happened.
//
// Thread safety: none.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rref_internal {

// Carries out the commands of a scenario.
class ScenarioTarget {
 public:
  virtual ~ScenarioTarget() = default;
  // "core", "driver" or "repeating driver".
  virtual std::string_view kind() const = 0;
  // Carries out one command and returns its log, each line ended. The log begins with "error:" if
  // the command makes no sense, and with "WRONG" if an expectation failed.
  virtual std::string execute(const std::vector<std::string>& words) = 0;
  // True if `log` is what a block without a section for this target asks for.
  virtual bool accepts(const std::string& expected, const std::string& log) {
    return expected == log;
  }
};

struct ScenarioBlock {
  std::vector<std::string> lines;            // commands and comments as written
  std::string expected;                      // the core's log
  std::map<std::string, std::string> other;  // logs by target, where they differ
};

std::vector<ScenarioBlock> parse_scenario(const std::string& text);
std::string print_scenario(const std::vector<ScenarioBlock>& blocks);

// Runs the file and returns what went wrong, "" if nothing did. With WEFT_REWRITE it rewrites the
// file.
std::string run_scenario(const std::string& path, ScenarioTarget& target);

// Returns all scenario files of a folder, sorted.
std::vector<std::string> scenario_files(const std::string& folder);

}  // namespace weft::rref_internal
