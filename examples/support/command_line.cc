#include "weft/examples/support/command_line.h"

#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>

namespace weft::examples {

int EarlyEnd::print() const {
  (exit_code == 0 ? std::cout : std::cerr) << text;
  return exit_code;
}

std::optional<EarlyEnd> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    const int code = app.exit(error, text, text) == 0 ? 0 : 2;
    return EarlyEnd{text.str(), code};
  }
}

}  // namespace weft::examples
