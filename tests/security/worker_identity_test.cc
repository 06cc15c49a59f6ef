#include "weft/security/worker_identity.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/log.h"
#include "weft/tests/base/environment_of.h"
#include "weft/tests/security/certificate_maker.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class WorkerIdentityTest : public ::testing::Test {
 protected:
  WorkerIdentityTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_credentials_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    variables_["HOME"] = folder_;
  }
  ~WorkerIdentityTest() override { fs::remove_all(folder_); }

  std::string write(const std::string& file, std::string_view content, mode_t mode) {
    const std::string path = folder_ + "/" + file;
    std::ofstream(path) << content;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  void use_files(const TlsCredentials& made) {
    variables_["WEFT_TLS_CERT"] = write("cert.pem", made.chain, 0644);
    variables_["WEFT_TLS_KEY"] = write("key.pem", made.key.text(), 0600);
    variables_["WEFT_TLS_CA"] = write("ca.pem", made.authorities, 0644);
  }
  absl::StatusOr<std::shared_ptr<TlsIdentity>> identity(const WorkerClaim& worker = {"a",
                                                                                     3}) const {
    return find_worker_identity("run", "trainer", worker, testing::environment_of(variables_),
                                std::chrono::milliseconds(1));
  }
  absl::StatusOr<TlsCredentials> find(const WorkerClaim& worker = {"a", 3}) const {
    const auto found = identity(worker);
    if (!found.ok()) return found.status();
    return copy_of(*(*found)->current());
  }
  std::string refused(absl::StatusCode code) const {
    const auto found = find();
    EXPECT_EQ(found.status().code(), code) << found.status();
    return std::string(found.status().message());
  }

  std::string folder_;
  std::map<std::string, std::string> variables_;
  const CertificateMaker site_;
  const std::string uri_ = "spiffe://site/weft/" + run_digest("run") + "/trainer/a";
};

TEST_F(WorkerIdentityTest, WithoutFilesTheJobsSecretSigns) {
  const auto one = find({"a", 0}), two = find({"b", 1});
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(one->authorities, two->authorities);
  EXPECT_EQ(one->name.worker, "a");
  EXPECT_EQ(two->name.worker, "b");
  EXPECT_TRUE(fs::exists(folder_ + "/.config/weft/secret"));
}

TEST_F(WorkerIdentityTest, FilesOfASiteComeBeforeTheSecret) {
  use_files(site_.make({.uris = {uri_}}));
  const auto found = find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->name.uri(), uri_);
  EXPECT_EQ(found->authorities, site_.certificate());
  EXPECT_FALSE(fs::exists(folder_ + "/.config"));
}

TEST_F(WorkerIdentityTest, ACertificateForARankIsForEachNameOfThatRank) {
  use_files(site_.make({.uris = {"spiffe://site/weft/" + run_digest("run") + "/trainer/rank.3"}}));
  EXPECT_EQ(find({"a", 3})->name.worker, "rank.3");
  EXPECT_EQ(find({"rank.3", 3})->name.worker, "rank.3");
  for (const WorkerClaim& other :
       {WorkerClaim{"a", 4}, WorkerClaim{"rank.3", 4}, WorkerClaim{"rank.3", std::nullopt}}) {
    const auto found = find(other);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << found.status();
    EXPECT_THAT(std::string(found.status().message()),
                HasSubstr(other.rank ? "with rank 4" : "with no fixed rank"));
  }
}

TEST_F(WorkerIdentityTest, AWorkerCannotHaveTheNameOfAnotherRank) {
  EXPECT_TRUE(find({"rank.3", 3}).ok());
  EXPECT_THAT(std::string(find({"rank.3", 4}).status().message()),
              HasSubstr("its name is that of a rank, but this worker is 'rank.3' with rank 4"));
}

TEST_F(WorkerIdentityTest, FilesThatAreReplacedAreReadAgain) {
  const TlsCredentials first = site_.make({.uris = {uri_}}), second = site_.make({.uris = {uri_}});
  use_files(first);
  const auto found = identity();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE((*found)->may_change());
  // Half of the files: the key does not fit. The log says so once they were read twice.
  std::atomic<bool> refused{false};
  set_log_sink([&](LogLevel, std::string_view line) {
    if (line.find("the key does not belong to the certificate") != line.npos) refused.store(true);
  });
  write("cert.pem", second.chain, 0644);
  EXPECT_TRUE(testing::eventually([&] { return refused.load(); }));
  EXPECT_EQ((*found)->current()->chain, first.chain);
  set_log_sink(nullptr);
  write("key.pem", second.key.text(), 0600);
  EXPECT_TRUE(testing::eventually([&] { return (*found)->current()->chain == second.chain; }));
}

TEST_F(WorkerIdentityTest, ANewCertificateOfAnotherWorkerIsLoggedAndTheOldOneStays) {
  std::atomic<int> lines{0};
  set_log_sink(
      [&](LogLevel, std::string_view line) { lines += line.find("/trainer/b") != line.npos; });
  const TlsCredentials first = site_.make({.uris = {uri_}});
  use_files(first);
  {
    const auto found = identity();
    ASSERT_TRUE(found.ok()) << found.status();
    use_files(site_.make({.uris = {"spiffe://site/weft/" + run_digest("run") + "/trainer/b"}}));
    EXPECT_TRUE(testing::eventually([&] { return lines.load() == 1; }));
    EXPECT_EQ((*found)->current()->chain, first.chain);
  }
  set_log_sink(nullptr);
}

TEST_F(WorkerIdentityTest, TheThreeVariablesBelongTogether) {
  use_files(site_.make({.uris = {uri_}}));
  variables_.erase("WEFT_TLS_KEY");
  variables_["WEFT_TLS_CA"] = "";
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument),
              HasSubstr("Not set, or empty: WEFT_TLS_KEY, WEFT_TLS_CA"));
}

TEST_F(WorkerIdentityTest, EmptyVariablesAreNoRequestForTheSecret) {
  for (const char* name : {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA"}) variables_[name] = "";
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("Not set, or empty"));
  EXPECT_FALSE(fs::exists(folder_ + "/.config"));
}

TEST_F(WorkerIdentityTest, ACertificateOfAnotherWorkerOrJobIsRefused) {
  use_files(site_.make({.uris = {"spiffe://site/weft/" + run_digest("run") + "/trainer/b"}}));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("/trainer/b"), HasSubstr("this worker is 'a'")));
  use_files(site_.make({.uris = {"spiffe://site/weft/" + run_digest("run") + "/server/a"}}));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("/server/a"), HasSubstr("and role 'trainer' (ROLE_NAME)")));
  use_files(site_.make({.uris = {"spiffe://site/weft/" + run_digest("other") + "/trainer/a"}}));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr(run_digest("run")));
}

TEST_F(WorkerIdentityTest, WhatIsWrongWithAFileIsToldWithItsName) {
  use_files(site_.make({.uris = {uri_}, .begins = -7200, .ends = -3600}));
  EXPECT_THAT(refused(absl::StatusCode::kPermissionDenied),
              AllOf(HasSubstr(variables_["WEFT_TLS_CERT"]), HasSubstr("expired")));
  use_files(site_.make({.uris = {uri_}}));
  ASSERT_EQ(::chmod(variables_["WEFT_TLS_KEY"].c_str(), 0640 | S_IRWXO), 0);
  EXPECT_THAT(refused(absl::StatusCode::kPermissionDenied), HasSubstr(variables_["WEFT_TLS_KEY"]));
  use_files(site_.make({.uris = {uri_}}));
  ASSERT_EQ(::chmod(variables_["WEFT_TLS_CA"].c_str(), 0666), 0);
  EXPECT_THAT(refused(absl::StatusCode::kPermissionDenied),
              AllOf(HasSubstr(variables_["WEFT_TLS_CA"]), HasSubstr("chmod go-w")));
  use_files(site_.make({.uris = {uri_}}));
  fs::remove(variables_["WEFT_TLS_CERT"]);
  EXPECT_THAT(refused(absl::StatusCode::kNotFound), HasSubstr(variables_["WEFT_TLS_CERT"]));
}

TEST_F(WorkerIdentityTest, ANameThatCannotStandInACertificateIsAnError) {
  const auto found = find({"a:b", 0});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("worker name 'a:b'"));
}

// Launchers call the store before they agree on a run id.
TEST_F(WorkerIdentityTest, TheStoresIdentityFromASecretIsOfNoJobAndProvesNoName) {
  const auto reader = testing::environment_of(variables_);
  const auto one = find_store_identity("one", reader), two = find_store_identity("", reader);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_FALSE(one->proves_name);
  EXPECT_EQ(one->tls->current()->name, two->tls->current()->name);
  EXPECT_EQ(one->tls->current()->authorities, two->tls->current()->authorities);
  EXPECT_NE(one->tls->current()->authorities, find()->authorities)
      << "it must not pass for a worker's";
}

TEST_F(WorkerIdentityTest, TheStoresIdentityOfASiteMayHaveAnyNameOfTheJob) {
  CertificateRequest request;
  request.uris = {uri_};
  use_files(site_.make(request));
  const auto reader = testing::environment_of(variables_);
  for (const char* run : {"run", ""}) {
    const auto found = find_store_identity(run, reader);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(found->proves_name);
    EXPECT_EQ(found->tls->current()->name.worker, "a");
  }
  const absl::Status refused = find_store_identity("another", reader).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'another'"));
}

}  // namespace
}  // namespace weft
