// Runs member_attacks.cc on one host, with certificates of a site and mutual TLS.
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/tests/support/spawning_test.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

class MemberAttacksTest : public testing::SpawningTest {
 protected:
  MemberAttacksTest()
      : folder_(std::filesystem::temp_directory_path() / absl::StrCat("weft_attacks.", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~MemberAttacksTest() override {
    end_command();
    std::filesystem::remove_all(folder_);
  }

  const std::filesystem::path folder_;
};

TEST_F(MemberAttacksTest, NoneSucceedsAndNobodyIsHarmed) {
  const std::string program = absl::StrCat(WEFT_BUILD_DIR, "/tests/attacks/member_attacks");
  start_command({program, "prepare", folder_});
  ASSERT_EQ(finish(), 0) << errors_;
  // Each process has the certificate of its own name.
  const std::string names =
      "export WEFT_TLS_CERT=$1/$NAME.pem WEFT_TLS_KEY=$1/$NAME.key WEFT_TLS_CA=$1/ca.pem "
      "WEFT_SECURITY=mtls WEFT_SAME_HOST=off; ";
  const std::string rank =
      absl::StrCat("case $RANK in 0) NAME=target;; 1) NAME=friend;; 2) NAME=guest;; esac; ", names,
                   "[ $NAME = guest ] && exec $0 guest $1; exec $0 $NAME");
  start_command({"/bin/sh", "-c",
                 absl::StrCat("NAME=launcher; ", names,
                              "exec $2 --no-prefix --run-id attacks -n 3 -- sh -c \"$3\" $0 $1"),
                 program, folder_, absl::StrCat(WEFT_BUILD_DIR, "/worker/weft_launch"), rank});
  EXPECT_EQ(finish(), 0) << output_ << errors_;
  int held = 0;
  for (const auto& line : absl::StrSplit(output_, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    if (parts.size() == 3) EXPECT_EQ(parts[1], "held") << line;
    held += parts.size() == 3;
  }
  EXPECT_EQ(held, 25) << output_;
  EXPECT_THAT(output_, HasSubstr("keys of an RRef, 1000 guesses"));
}

}  // namespace
}  // namespace weft
