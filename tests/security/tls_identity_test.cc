#include "weft/security/tls_identity.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "weft/base/mutex.h"
#include "weft/tests/base/captured_log.h"
#include "weft/tests/security/certificate_maker.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::eventually;

// Credentials that a test replaces.
class TlsIdentityTest : public ::testing::Test {
 protected:
  std::shared_ptr<TlsIdentity> watching() {
    auto made = TlsIdentity::watching(
        site_.make(),
        [this]() -> absl::StatusOr<std::optional<TlsCredentials>> {
          MutexLock lock(mutex_);
          ++looks_;
          if (!problem_.ok() && fails_-- > 0) return problem_;
          return std::exchange(next_, std::nullopt);
        },
        milliseconds(1));
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  void replace(TlsCredentials next) {
    MutexLock lock(mutex_);
    problem_ = absl::OkStatus();
    next_ = std::move(next);
  }
  void fail(absl::Status problem, int times) {
    MutexLock lock(mutex_);
    fails_ = times;
    problem_ = std::move(problem);
  }
  size_t lines_with(const std::string& text) { return log_.lines_with(text).size(); }
  bool looks_again(int times) {
    int begun;
    {
      MutexLock lock(mutex_);
      begun = looks_;
    }
    return eventually([&] {
      MutexLock lock(mutex_);
      return looks_ >= begun + times;
    });
  }

  const CertificateMaker site_;
  Mutex mutex_;
  std::optional<TlsCredentials> next_ ABSL_GUARDED_BY(mutex_);
  absl::Status problem_ ABSL_GUARDED_BY(mutex_);
  int fails_ ABSL_GUARDED_BY(mutex_) = 0;
  int looks_ ABSL_GUARDED_BY(mutex_) = 0;
  const testing::CapturedLog log_;
};

TEST_F(TlsIdentityTest, AFixedOneNeverChanges) {
  const TlsIdentity fixed(site_.make());
  EXPECT_FALSE(fixed.may_change());
  EXPECT_EQ(fixed.current(), fixed.current());
}

TEST_F(TlsIdentityTest, ANewCertificateTakesThePlaceOfTheOldOne) {
  const auto identity = watching();
  std::string told;
  bool fails = false;
  identity->on_change([&](const TlsCredentials& now) {
    MutexLock lock(mutex_);
    if (fails) return absl::ResourceExhaustedError("no descriptor");
    told = now.chain;
    return absl::OkStatus();
  });
  const std::string old = identity->current()->chain;
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(told, old);
    fails = true;  // it is told again later
  }
  replace(site_.make());
  EXPECT_TRUE(eventually([&] { return identity->current()->chain != old; }));
  EXPECT_TRUE(looks_again(3));
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(told, old);
    fails = false;
  }
  EXPECT_TRUE(eventually([&] {
    MutexLock lock(mutex_);
    return told == identity->current()->chain;
  }));
  identity->on_change(nullptr);
}

TEST_F(TlsIdentityTest, WhatCannotBeUsedLeavesTheOldOneAndIsLoggedOnce) {
  const auto identity = watching();
  const std::string old = identity->current()->chain;
  fail(absl::InvalidArgumentError("the key does not belong to the certificate"), 1 << 20);
  EXPECT_TRUE(eventually([&] { return lines_with("the old certificate stays: the key") == 1; }));
  EXPECT_TRUE(looks_again(10));
  EXPECT_EQ(lines_with("the old certificate stays"), 1u);
  EXPECT_EQ(identity->current()->chain, old);
  replace(site_.make());
  EXPECT_TRUE(eventually([&] { return identity->current()->chain != old; }));
}

TEST_F(TlsIdentityTest, FilesThatAreHalfReplacedAtOneLookAreNoNews) {
  const auto identity = watching();
  fail(absl::InvalidArgumentError("the key does not belong to the certificate"), 1);
  EXPECT_TRUE(looks_again(5));
  EXPECT_EQ(lines_with("the key"), 0u);
}

TEST_F(TlsIdentityTest, AnotherNameIsRefused) {
  const auto identity = watching();
  const std::string uri = "spiffe://weft.local/weft/0123456789abcdef/default/b";
  const std::string old = identity->current()->chain;
  replace(site_.make({.uris = {uri}}));
  EXPECT_TRUE(looks_again(1));
  replace(site_.make({.uris = {uri}}));
  EXPECT_TRUE(eventually([&] { return lines_with(uri) == 1; }));
  EXPECT_EQ(identity->current()->chain, old);
}

}  // namespace
}  // namespace weft
