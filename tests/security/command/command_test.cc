// The command weft_cert: its files are those that a worker takes, and its mistakes have names.
#include "weft/security/command/command.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/security/worker_identity.h"
#include "weft/tests/base/environment_of.h"

namespace weft::security_internal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int code;
  std::string out, errors;
};

Outcome run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "weft_cert");
  std::vector<const char*> argv;
  for (const std::string& each : arguments) argv.push_back(each.c_str());
  std::ostringstream out, errors;
  const int code = run_command(static_cast<int>(argv.size()), argv.data(), out, errors);
  return {code, out.str(), errors.str()};
}

class CertificateCommandTest : public ::testing::Test {
 protected:
  CertificateCommandTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_cert_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~CertificateCommandTest() override { fs::remove_all(folder_); }

  Outcome issue(std::vector<std::string> more) {
    std::vector<std::string> all = {"issue",  "--authority", folder_ + "/site", "--run-id", "run",
                                    "--name", "a",           "--out",           folder_};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
  absl::StatusOr<std::shared_ptr<TlsIdentity>> join(const std::string& role,
                                                    const std::string& worker) {
    return find_worker_identity(
        "run", role, {worker, std::nullopt},
        testing::environment_of({{"WEFT_TLS_CERT", folder_ + "/a.pem"},
                                 {"WEFT_TLS_KEY", folder_ + "/a.key"},
                                 {"WEFT_TLS_CA", folder_ + "/site/ca.pem"}}));
  }
  static mode_t mode(const std::string& file) {
    struct stat found = {};
    EXPECT_EQ(::stat(file.c_str(), &found), 0) << file;
    return found.st_mode & 07777;
  }

  std::string folder_;
};

TEST_F(CertificateCommandTest, AWorkerJoinsWithItsFilesAndNobodyElseDoes) {
  const Outcome authority = run({"authority", folder_ + "/site"});
  EXPECT_EQ(authority.code, 0) << authority.errors;
  EXPECT_EQ(authority.out, "WEFT_TLS_CA=" + folder_ + "/site/ca.pem\n");
  EXPECT_EQ(mode(folder_ + "/site/ca.key"), 0600u);
  const Outcome one = issue({"--role", "trainer"});
  EXPECT_EQ(one.code, 0) << one.errors;
  EXPECT_EQ(one.out, "WEFT_TLS_CERT=" + folder_ + "/a.pem\nWEFT_TLS_KEY=" + folder_ +
                         "/a.key\nWEFT_TLS_CA=" + folder_ + "/site/ca.pem\n");
  EXPECT_EQ(mode(folder_ + "/a.key"), 0600u);
  const auto identity = join("trainer", "a");
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ((*identity)->current()->name.role, "trainer");
  for (const auto& wrong : {join("server", "a"), join("trainer", "b")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(wrong.status())) << wrong.status();
    EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("/trainer/a, but this worker is"));
  }
  const Outcome shown = run({"show", folder_ + "/a.pem"});
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.out, AllOf(HasSubstr("/trainer/a, valid from 20"), HasSubstr(" UTC to 20")));
}

TEST_F(CertificateCommandTest, ANewCertificateTakesThePlaceOfTheOldOneButNotAnAuthority) {
  ASSERT_EQ(run({"authority", folder_ + "/site"}).code, 0);
  ASSERT_EQ(issue({}).code, 0);
  ASSERT_EQ(issue({"--days", "1"}).code, 0);
  EXPECT_TRUE(join("default", "a").ok());
  const Outcome again = run({"authority", folder_ + "/site"});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.errors, HasSubstr("/site/ca.key exists already"));
  EXPECT_TRUE(join("default", "a").ok());
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 4u);  // no temporary one is left
}

TEST_F(CertificateCommandTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(run({}).code, 2);
  EXPECT_EQ(run({"--help"}).code, 0);
  EXPECT_EQ(run({"issue"}).code, 2);
  EXPECT_EQ(run({"authority", folder_, "--days", "0"}).code, 2);
  EXPECT_THAT(issue({}).errors, HasSubstr("cannot open " + folder_ + "/site/ca.pem"));
  ASSERT_EQ(run({"authority", folder_ + "/site", "--days", "2"}).code, 0);
  EXPECT_THAT(issue({}).errors, HasSubstr("would outlive its authority"));
  EXPECT_THAT(issue({"--days", "1", "--role", "a b"}).errors, HasSubstr("role 'a b'"));
  EXPECT_THAT(issue({"--days", "1", "--trust-domain", "a/b"}).errors,
              HasSubstr("--trust-domain: "));
  EXPECT_THAT(
      run({"issue", "--authority", folder_ + "/site", "--run-id", "run", "--name", "rank.3"})
          .errors,
      HasSubstr("--name: 'rank.3'"));
  EXPECT_THAT(run({"show", folder_ + "/none"}).errors, HasSubstr("cannot open"));
  ASSERT_EQ(::chmod((folder_ + "/site/ca.key").c_str(), 0644), 0);
  EXPECT_THAT(issue({"--days", "1"}).errors, HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace weft::security_internal
