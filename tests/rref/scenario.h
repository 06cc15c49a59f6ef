// Runs text scenarios of the RRef protocol: commands above, the exact log they must give below.
//
// A scenario file is a list of blocks, separated by empty lines:
//
//   # a comment
//   w1 remote w2 -> r1
//   deliver all
//   ----
//   (one line for everything that happened)
//
// With the environment variable WEFT_REWRITE set, the logs in the file are replaced by what
// happened. Commands are words; docs/rref_protocol.md lists them. The same files can drive other
// targets than the bare core: those compare only the results of "expect" commands.
#pragma once

#include <string>
#include <vector>

namespace weft::internal {

// What scenarios act on.
class ScenarioTarget {
 public:
  virtual ~ScenarioTarget() = default;
  // Carries out one command and returns its log, each line ended. Begins with "error:" if the
  // command makes no sense, with "WRONG" if an expectation failed.
  virtual std::string execute(const std::vector<std::string>& words) = 0;
};

struct ScenarioBlock {
  std::vector<std::string> lines;  // commands and comments as written
  std::string expected;
};

std::vector<ScenarioBlock> parse_scenario(const std::string& text);
std::string print_scenario(const std::vector<ScenarioBlock>& blocks);

// Runs the file and returns what went wrong, empty if nothing; rewrites the file if told so.
std::string run_scenario(const std::string& path, ScenarioTarget& target);

// All scenario files of a folder, sorted.
std::vector<std::string> scenario_files(const std::string& folder);

}  // namespace weft::internal
