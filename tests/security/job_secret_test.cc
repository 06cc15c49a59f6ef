#include "weft/security/job_secret.h"

#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/base/environment_of.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr char kGood[] = "0123456789abcdef0123456789abcdef";

class JobSecretTest : public ::testing::Test {
 protected:
  JobSecretTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_secret_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    variables_["HOME"] = folder_;
  }
  ~JobSecretTest() override { fs::remove_all(folder_); }

  std::string write(const std::string& content, mode_t mode = 0600) {
    const std::string path = absl::StrCat(folder_, "/secret");
    std::ofstream(path) << content;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    variables_["WEFT_SECRET_FILE"] = path;
    return path;
  }
  absl::StatusOr<SecretBytes> find() const {
    return find_job_secret(testing::environment_of(variables_));
  }
  std::string found() const {
    const auto secret = find();
    EXPECT_TRUE(secret.ok()) << secret.status();
    return secret.ok() ? std::string(secret->text()) : "";
  }
  std::string refused(absl::StatusCode code) const {
    const auto secret = find();
    EXPECT_EQ(secret.status().code(), code) << secret.status();
    return std::string(secret.status().message());
  }

  std::string folder_;
  std::map<std::string, std::string> variables_;
};

TEST_F(JobSecretTest, IsTheContentOfTheFileWithoutSpaceAtItsEnds) {
  write(absl::StrCat(" ", kGood, "\r\n"));
  EXPECT_EQ(found(), kGood);
}

TEST_F(JobSecretTest, IsMadeAtFirstUseForThisUserAlone) {
  const std::string made = found();
  EXPECT_THAT(made, MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(made.size(), 64u);
  EXPECT_EQ(found(), made);
  const std::string path = absl::StrCat(folder_, "/.config/weft/secret");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(folder_ + "/.config/weft").permissions(), fs::perms::owner_all);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/.config/weft"), {}), 1);
}

TEST_F(JobSecretTest, TheConfigurationFolderComesBeforeTheHome) {
  variables_["XDG_CONFIG_HOME"] = folder_ + "/elsewhere";
  const std::string made = found();
  EXPECT_TRUE(fs::exists(folder_ + "/elsewhere/weft/secret"));
  EXPECT_FALSE(fs::exists(folder_ + "/.config"));
  EXPECT_EQ(found(), made);
}

TEST_F(JobSecretTest, ProcessesThatMakeItAtOnceAgree) {
  for (int round = 0; round < 20; ++round) {
    fs::remove_all(folder_ + "/.config");
    std::vector<std::string> results(8);
    std::vector<std::thread> threads;
    for (std::string& result : results) threads.emplace_back([&] { result = found(); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(results, ::testing::Each(results.front()));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/.config/weft"), {}), 1);
  }
}

TEST_F(JobSecretTest, AFileThatOthersCouldReadOrWriteIsRefused) {
  for (const mode_t mode : {0644u, 0604u, 0620u, 0602u, 0666u}) {
    const std::string path = write(kGood, mode);
    EXPECT_THAT(refused(absl::StatusCode::kPermissionDenied),
                AllOf(HasSubstr(path), HasSubstr("chmod 600")));
  }
}

TEST_F(JobSecretTest, AFolderThatOthersCanWriteIsRefused) {
  (void)found();
  ASSERT_EQ(::chmod((folder_ + "/.config/weft").c_str(), 0777), 0);
  EXPECT_THAT(refused(absl::StatusCode::kPermissionDenied),
              AllOf(HasSubstr(folder_ + "/.config/weft"), HasSubstr("chmod 700")));
}

TEST_F(JobSecretTest, TheGroupMayReadAFileOfRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of root";
  write(kGood, 0440);
  EXPECT_EQ(found(), kGood);
}

TEST_F(JobSecretTest, AFileOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const std::string path = write(kGood);
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_THAT(refused(absl::StatusCode::kPermissionDenied),
              AllOf(HasSubstr(path), HasSubstr("12345")));
}

TEST_F(JobSecretTest, AContentThatIsNoSecretIsRefused) {
  for (const std::string& bad :
       {std::string(), std::string("short"), std::string(5000, 'a'), std::string(100'000, 'a')}) {
    const std::string path = write(bad);
    EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr(path));
  }
  write(std::string(kGood) + " " + kGood);
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("not printable"));
}

TEST_F(JobSecretTest, AMissingFileIsNamedAndNotMade) {
  variables_["WEFT_SECRET_FILE"] = folder_ + "/missing";
  EXPECT_THAT(refused(absl::StatusCode::kNotFound), HasSubstr(folder_ + "/missing"));
  EXPECT_FALSE(fs::exists(folder_ + "/missing"));
  variables_["WEFT_SECRET_FILE"] = "";
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("WEFT_SECRET_FILE is empty"));
  variables_["WEFT_SECRET_FILE"] = folder_;
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("regular file"));
}

TEST_F(JobSecretTest, APipeIsReadOnceForAllProcesses) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  variables_["WEFT_SECRET_FILE"] = pipe;
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("regular file"));
  std::thread writer([&] { std::ofstream(pipe) << kGood << std::flush << "\n"; });
  const auto kept = keep_secret_of_pipe(testing::environment_of(variables_));
  writer.join();
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_TRUE(kept->has_value());
  const std::string path = (*kept)->path;
  variables_["WEFT_SECRET_FILE"] = path;
  EXPECT_EQ(found(), kGood);
  EXPECT_EQ(found(), kGood);
  EXPECT_FALSE(std::ofstream(path) << "another secret" << std::flush);
  EXPECT_NE(::fcntl((*kept)->file.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(JobSecretTest, APipeMustEndWithASecret) {
  const auto keep = [&](Nanoseconds timeout = std::chrono::minutes(1)) {
    return keep_secret_of_pipe(testing::environment_of(variables_), timeout);
  };
  for (const std::string& none : {std::string(), folder_, folder_ + "/missing", write(kGood)}) {
    variables_["WEFT_SECRET_FILE"] = none;
    const auto kept = keep();
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_FALSE(kept->has_value());
  }
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0644), 0);
  variables_["WEFT_SECRET_FILE"] = pipe;
  EXPECT_TRUE(absl::IsPermissionDenied(keep().status())) << keep().status();
  ASSERT_EQ(::chmod(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(keep(std::chrono::milliseconds(1)).status()));
  for (const std::string& bad : {std::string("short"), std::string(5000, 'a')}) {
    std::thread writer([&] { std::ofstream(pipe) << bad; });
    const auto kept = keep();
    writer.join();
    EXPECT_TRUE(absl::IsInvalidArgument(kept.status())) << kept.status();
    EXPECT_THAT(std::string(kept.status().message()), HasSubstr(pipe));
  }
}

TEST_F(JobSecretTest, TheEnvironmentIsNoPlaceForIt) {
  variables_["WEFT_SECRET"] = "a secret that must not be told again";
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("WEFT_SECRET_FILE"), ::testing::Not(HasSubstr("told again"))));
}

TEST(SecretBytesTest, AForkedChildSeesZeros) {
  const SecretBytes secret("abcdef");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(secret.text() == std::string_view("\0\0\0\0\0\0", 6) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SecretBytesTest, MovesAndShrinks) {
  SecretBytes one("abcdef");
  SecretBytes two(std::move(one));
  EXPECT_EQ(two.text(), "abcdef");
  two.shrink(3);
  EXPECT_EQ(two.text(), "abc");
  two.shrink(10);
  EXPECT_EQ(two.size(), 3u);
  one = std::move(two);
  EXPECT_EQ(one.text(), "abc");
  EXPECT_EQ(SecretBytes().text(), "");
}

}  // namespace
}  // namespace weft
