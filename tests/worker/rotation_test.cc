// Workers whose site replaces their certificates again and again, while they call each other and
// their connections break.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/security/certificate_name.h"
#include "weft/security/worker_identity.h"
#include "weft/tests/rpc/transport/proxied_transport.h"
#include "weft/tests/security/certificate_maker.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/worker_world.h"

namespace rotation_test {

namespace fs = std::filesystem;
using weft::Future;
using weft::TlsIdentity;
using weft::WorkerOptions;
using weft::testing::eventually;
using weft::testing::ProxiedNetwork;
using weft::testing::ProxiedTransport;
using weft::testing::WorkerWorld;

int64_t same(int64_t value) { return value; }
WEFT_REGISTER_FUNCTION(same);

// The certificate of a worker, in files that a site replaces.
class SiteFiles {
 public:
  SiteFiles(const fs::path& folder, const std::string& worker)
      : path_(folder / worker),
        uri_(absl::StrCat("spiffe://site/weft/", weft::run_digest("run"), "/default/", worker)) {
    std::ofstream(path_.string() + ".ca") << site().certificate();
    issue();
    auto found = weft::find_worker_identity(
        "run", "", {worker, std::nullopt},
        [this](const char* name) -> std::optional<std::string> {
          const std::string variable = name;
          if (variable == "WEFT_TLS_CERT") return path_.string() + ".pem";
          if (variable == "WEFT_TLS_KEY") return path_.string() + ".key";
          if (variable == "WEFT_TLS_CA") return path_.string() + ".ca";
          return std::nullopt;
        },
        std::chrono::milliseconds(5));
    EXPECT_TRUE(found.ok()) << found.status();
    identity_ = *found;
  }

  // Replaces the files, and waits until the worker has read them.
  void replace() {
    issue();
    EXPECT_TRUE(eventually([this] { return identity_->current()->chain == newest_; }));
  }
  const std::shared_ptr<TlsIdentity>& identity() const { return identity_; }

 private:
  static const weft::CertificateMaker& site() {
    static const weft::CertificateMaker site;
    return site;
  }
  void issue() {
    const weft::TlsCredentials made = site().make({.uris = {uri_}});
    write(".key", made.key.text(), fs::perms::owner_read | fs::perms::owner_write);
    write(".pem", made.chain, fs::perms::owner_read | fs::perms::owner_write);
    newest_ = made.chain;
  }
  // A file is replaced as a whole, as weft_cert does it.
  void write(const std::string& ending, std::string_view text, fs::perms mode) {
    const fs::path path = path_.string() + ending, part = path.string() + ".new";
    std::ofstream(part) << text;
    fs::permissions(part, mode);
    fs::rename(part, path);
  }

  const fs::path path_;
  const std::string uri_;
  std::string newest_;
  std::shared_ptr<TlsIdentity> identity_;
};

class GrpcRotationTest : public ::testing::Test {
 protected:
  GrpcRotationTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_rotation_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~GrpcRotationTest() override { fs::remove_all(folder_); }

  std::string folder_;
};

// 100 certificates for each worker. After each, the connections break while calls are on their way.
// GrpcTlsTest.NewCertificatesAreUsedAndNoDialFails checks that the new ones are in use.
TEST_F(GrpcRotationTest, NoCallFailsWhileCertificatesAreReplaced) {
  constexpr int kRotations = 100, kCallsBetween = 25;
  std::vector<std::unique_ptr<SiteFiles>> files;
  for (int i = 0; i < 2; ++i) {
    files.push_back(
        std::make_unique<SiteFiles>(folder_, WorkerWorld::name(static_cast<size_t>(i))));
  }
  const auto network = std::make_shared<ProxiedNetwork>();
  WorkerWorld world(2, [&](size_t rank, WorkerOptions& options) {
    weft::GrpcTransportOptions grpc;
    grpc.tls = files[rank]->identity();
    options.transport = [network, grpc](weft::Clock& clock) {
      return std::make_unique<ProxiedTransport>(clock, network, grpc);
    };
  });
  const weft::WorkerScope scope(world[0]);
  const uint64_t before = network->proxy().connections();
  int64_t right = 0;
  for (int rotation = 0; rotation < kRotations; ++rotation) {
    for (const auto& one : files) one->replace();
    std::vector<Future<int64_t>> answers;
    for (int64_t i = 0; i < kCallsBetween; ++i) {
      answers.push_back(weft::rpc_async("worker1", same, i));
    }
    network->cut();
    for (int64_t i = 0; i < kCallsBetween; ++i) {
      right += answers[static_cast<size_t>(i)].wait() == i;
    }
  }
  EXPECT_EQ(right, kRotations * kCallsBetween);
  EXPECT_GE(network->proxy().connections() - before, uint64_t{kRotations} / 2);
  world.shutdown_all();
}

}  // namespace rotation_test
