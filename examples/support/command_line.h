// The command line of a program: its options, or what it prints instead of running.
//
//   const CommandLine<JobOptions> command = parse_job_options(argc, argv);
//   if (!command.options) return command.print();
//
// Thread safety: plain values.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace weft::examples {

// Of a program that does not run.
struct EarlyEnd {
  std::string text;
  int exit_code = 0;  // 0 after --help, 2 after a mistake

  // To standard output after --help, to standard error after a mistake. Returns the exit code.
  int print() const;
};

template <class Options>
struct CommandLine : EarlyEnd {
  std::optional<Options> options;  // nullopt: print() the text, end with `exit_code`
};

// Nullopt: what `app` was told to fill is filled, and the program may run.
std::optional<EarlyEnd> parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace weft::examples
