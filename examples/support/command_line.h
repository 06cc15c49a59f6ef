// The result of parsing a command line: the options, or a text to print instead of running.
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

// The text and the exit code of a program that does not run.
struct EarlyEnd {
  std::string text;
  int exit_code = 0;  // 0 after --help, 2 after a mistake

  // Prints to standard output after --help, to standard error after a mistake. Returns the exit
  // code.
  int print() const;
};

template <class Options>
struct CommandLine : EarlyEnd {
  std::optional<Options> options;  // nullopt: print() the text and exit with `exit_code`
};

// Parses into the variables that `app` refers to. Nullopt means that the program may run.
std::optional<EarlyEnd> parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace weft::examples
