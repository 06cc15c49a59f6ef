#include "weft/worker/run_main.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

class RunMainTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TORCHELASTIC_ERROR_FILE", path_.c_str(), 1); }
  void TearDown() override {
    unsetenv("TORCHELASTIC_ERROR_FILE");
    std::remove(path_.c_str());
  }
  nlohmann::json written() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file, nullptr, false);
  }

  // ctest runs the tests of this file at the same time, each in a process of its own.
  const std::string path_ = absl::StrCat(::testing::TempDir(), "run_main_error.", getpid());
};

TEST_F(RunMainTest, GivesArgumentsAndExitCodeThrough) {
  char name[] = "program";
  char* arguments[] = {name, nullptr};
  EXPECT_EQ(run_main(1, arguments,
                     [&](int argc, char** argv) {
                       EXPECT_EQ(argc, 1);
                       EXPECT_EQ(argv, arguments);
                       return 7;
                     }),
            7);
  EXPECT_FALSE(std::ifstream(path_).good());
}

TEST_F(RunMainTest, AnExceptionBecomesExitCodeOneAndAMessageForTheLauncher) {
  const int code = run_main(0, nullptr, [](int, char**) -> int {
    throw RpcError(absl::UnavailableError("worker 'ps' is \"gone\"\xff"));
  });
  EXPECT_EQ(code, EXIT_FAILURE);
  const nlohmann::json file = written();
  ASSERT_TRUE(file.is_object());
  EXPECT_THAT(file["message"]["message"].get<std::string>(), HasSubstr("worker 'ps' is \"gone\""));
  // If it were there, torchrun would show it instead of the message.
  EXPECT_FALSE(file["message"]["extraInfo"].contains("py_callstack"));
  EXPECT_GT(std::stoll(file["message"]["extraInfo"]["timestamp"].get<std::string>()), 1600000000);
}

using RunMainDeathTest = RunMainTest;

TEST_F(RunMainDeathTest, AnExceptionOfAnotherThreadIsWrittenBeforeTheProcessAborts) {
  EXPECT_DEATH(run_main(0, nullptr,
                        [](int, char**) {
                          std::thread([] { throw std::runtime_error("in a thread"); }).join();
                          return 0;
                        }),
               "in a thread");
  EXPECT_THAT(written().dump(), HasSubstr("in a thread"));
}

}  // namespace
}  // namespace weft
