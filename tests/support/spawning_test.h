// A fixture that starts a program and reads its standard output and standard error, kept apart,
// while it runs.
//
// Thread safety: none.
// Lifetime: the destructor ends a program that still runs, with SIGTERM.
// Blocking: the reading methods until the program prints something or closes its output.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include <gtest/gtest.h>

namespace weft::testing {

class SpawningTest : public ::testing::Test {
 protected:
  ~SpawningTest() override { end_command(); }

  // Starts a program; `command` holds its path and its arguments.
  void start_command(const std::vector<std::string>& command);
  // Reads what there is, and waits for it. Returns false at the end of both streams.
  bool read_some();
  // Reads until standard output holds `text` so many times, or to its end.
  void read_until(const std::string& text, int count = 1);
  // Reads to the end and waits for the program. Returns its exit code; 1000 + N: killed by signal
  // N.
  int finish();
  // Ends a program that has not been waited for, and closes the streams.
  void end_command();
  // Acts as a reader of standard output that leaves.
  void close_output();

  pid_t process_ = -1;  // of the program; -1: waited for
  std::string output_;  // of all programs that the test has started, unless it clears this
  std::string errors_;

 private:
  int out_ = -1;  // ends of pipes; -1: closed
  int err_ = -1;
};

}  // namespace weft::testing
