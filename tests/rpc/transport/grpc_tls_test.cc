// Mutual TLS: who is let in, who is refused, and what both ends are told.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/tests/base/captured_log.h"
#include "weft/tests/rpc/transport/raw_stream.h"
#include "weft/tests/rpc/transport/transport_ends.h"
#include "weft/tests/security/certificate_maker.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::credentials_of;
using testing::End;
using testing::eventually;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::numbered_frame;

using Credentials = std::shared_ptr<TlsIdentity>;

class GrpcTlsTest : public ::testing::Test {
 protected:
  // Its hello has this role, whatever its certificate says.
  std::unique_ptr<End> started(uint32_t index, Credentials tls,
                               const std::string& role = "default") {
    auto end = std::make_unique<End>();
    GrpcTransportOptions options;
    options.tls = std::move(tls);
    end->transport = std::make_unique<GrpcTransport>(clock_, options);
    end->identity = {"group", "w" + std::to_string(index), {index, 1}};
    end->identity.role = role;
    EXPECT_TRUE(end->transport->start(end->identity, &end->sink).ok());
    return end;
  }
  absl::StatusOr<ConnectionPtr> connect(End& from, const End& to) {
    return connect(from, to.transport->address(), to.identity);
  }
  absl::StatusOr<ConnectionPtr> connect(End& from, const std::string& address,
                                        const PeerIdentity& expected) {
    return testing::dial(from, address, expected).result();
  }
  bool is_logged(const std::string& text) {
    return eventually([&] { return !log_.lines_with(text).empty(); });
  }

  SystemClock clock_;
  const CertificateMaker site_;
  const testing::CapturedLog log_;
};

std::string uri(const std::string& worker, const std::string& run = run_digest("group")) {
  return "spiffe://site.example/weft/" + run + "/default/" + worker;
}

Credentials shared(TlsCredentials made) { return std::make_shared<TlsIdentity>(std::move(made)); }

TEST_F(GrpcTlsTest, WorkersOfOneJobConnectAndTheLogStaysEmpty) {
  {
    auto a = started(1, credentials_of("w1")), b = started(2, credentials_of("w2"));
    const auto connection = connect(*a, *b);
    ASSERT_TRUE(connection.ok()) << connection.status();
    EXPECT_TRUE((*connection)->send(numbered_frame(1, 1 << 20)));
    ASSERT_TRUE(b->sink.wait_for_frames(1));
  }
  EXPECT_THAT(log_.lines_with(""), ::testing::IsEmpty());
}

TEST_F(GrpcTlsTest, CertificatesOfASiteAreAsGood) {
  auto a = started(1, shared(site_.make({.uris = {uri("w1")}})));
  auto b = started(2, shared(site_.make({.uris = {uri("w2")}})));
  const auto connection = connect(*a, *b);
  EXPECT_TRUE(connection.ok()) << connection.status();
}

// No case may reach the sink: it would run handlers for the dialler.
TEST_F(GrpcTlsTest, ADiallerWithABadCertificateIsRefusedAndToldWhy) {
  const TlsCredentials good = site_.make({.uris = {uri("w2")}});
  const auto with_authorities_of_site = [&](TlsCredentials made) {
    made.authorities = good.authorities;
    return shared(std::move(made));
  };
  struct Case {
    const char* what;
    Credentials tls;
    const char* dialler_is_told;
    const char* log_says;  // null: nothing, because gRPC has a line in a second
  };
  const Case cases[] = {
      {"another authority",
       with_authorities_of_site(CertificateMaker().make({.uris = {uri("w1")}})),
       "does not accept this worker's certificate", "gRPC: Handshake failed"},
      {"expired", shared(site_.make({.uris = {uri("w1")}, .begins = -7200, .ends = -3600})),
       "does not accept this worker's certificate", nullptr},
      {"not yet valid", shared(site_.make({.uris = {uri("w1")}, .begins = 3600, .ends = 7200})),
       "does not accept this worker's certificate", nullptr},
      {"two URIs", shared(site_.make({.uris = {uri("w1"), uri("w3")}})), "has 2 URIs",
       "has 2 URIs"},
      {"a common name only", shared(site_.make({.uris = {}, .common_name = "w1"})), "has 0 URIs",
       "has 0 URIs"},
      {"another worker's", shared(site_.make({.uris = {uri("w3")}})),
       "the certificate names worker 'w3', but the hello names 'w1'", "names worker 'w3'"},
      {"another job's", shared(site_.make({.uris = {uri("w1", run_digest("other"))}})),
       "is not of this job", "is not of this job"},
      {"a longer name behind a byte of zero",
       shared(site_.make({.uris = {uri("w1") + std::string("\0.evil", 6)}})),
       "spiffe://TRUST/weft/RUN/ROLE/NAME", "spiffe://TRUST/weft/RUN/ROLE/NAME"},
      {"another trust domain's",
       shared(site_.make({.uris = {"spiffe://other/weft/" + run_digest("group") + "/default/w1"}})),
       "is not of this job", "is not of this job"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    auto b = started(2, shared(copy_of(good)));  // each has a line in the log
    // A dialler that is refused for its own certificate does not complain about the far end's.
    TlsCredentials tls = copy_of(*one.tls->current());
    tls.name = good.name;
    tls.name.worker = "w1";
    auto a = started(1, shared(std::move(tls)));
    const absl::Status status = connect(*a, *b).status();
    EXPECT_THAT(status.code(),
                AnyOf(absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnauthenticated))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.dialler_is_told));
    EXPECT_TRUE(one.log_says == nullptr || is_logged(one.log_says));
    EXPECT_THAT(b->sink.accepted(), ::testing::IsEmpty());
  }
}

TEST_F(GrpcTlsTest, ADiallerChecksWhomItReached) {
  auto a = started(1, shared(site_.make({.uris = {uri("w1")}})));
  struct Case {
    const char* what;
    Credentials tls;
    absl::StatusCode code;
    const char* told;
  };
  const Case cases[] = {
      {"another authority", shared(CertificateMaker().make({.uris = {uri("w2")}})),
       absl::StatusCode::kUnauthenticated, "the far end's certificate is refused"},
      {"expired", shared(site_.make({.uris = {uri("w2")}, .begins = -7200, .ends = -3600})),
       absl::StatusCode::kUnauthenticated, "the far end's certificate is refused"},
      {"another worker", shared(site_.make({.uris = {uri("w3")}})),
       absl::StatusCode::kFailedPrecondition, "the certificate of worker 'w3' answers there"},
      {"another job", shared(site_.make({.uris = {uri("w2", run_digest("other"))}})),
       absl::StatusCode::kUnauthenticated, "is not of this job"},
      {"two URIs", shared(site_.make({.uris = {uri("w2"), uri("w3")}})),
       absl::StatusCode::kUnauthenticated, "has 2 URIs"},
      {"a longer name behind a byte of zero",
       shared(site_.make({.uris = {uri("w2") + std::string("\0.evil", 6)}})),
       absl::StatusCode::kUnauthenticated, "spiffe://TRUST/weft/RUN/ROLE/NAME"},
      {"no TLS", nullptr, absl::StatusCode::kUnauthenticated, "does not use TLS"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    auto b = started(2, one.tls);
    const absl::Status status = connect(*a, *b).status();
    EXPECT_EQ(status.code(), one.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.told));
    EXPECT_THAT(b->sink.accepted(), ::testing::IsEmpty());
  }
}

TEST_F(GrpcTlsTest, ACertificateForARankIsForThatRankUnderAnyName) {
  const auto of_rank = [&](uint32_t rank) {
    return shared(site_.make({.uris = {uri(name_of_rank(rank))}}));
  };
  auto a = started(1, of_rank(1)), b = started(2, of_rank(2));
  const auto connection = connect(*a, *b);
  ASSERT_TRUE(connection.ok()) << connection.status();

  auto impostor = started(3, of_rank(1));  // it says that it is w3 with rank 3
  const absl::Status dialling = connect(*impostor, *b).status();
  EXPECT_EQ(dialling.code(), absl::StatusCode::kPermissionDenied) << dialling;
  EXPECT_THAT(std::string(dialling.message()),
              HasSubstr("names worker 'rank.1', but the hello names 'w3' with rank 3"));
  const absl::Status dialled = connect(*a, *impostor).status();
  EXPECT_EQ(dialled.code(), absl::StatusCode::kFailedPrecondition) << dialled;
}

std::string uri_of_server(const std::string& worker) {
  return "spiffe://site.example/weft/" + run_digest("group") + "/server/" + worker;
}

TEST_F(GrpcTlsTest, BothEndsLearnTheRoleThatTheOtherHasProven) {
  auto a = started(1, shared(site_.make({.uris = {uri("w1")}})));
  auto b = started(2, shared(site_.make({.uris = {uri_of_server("w2")}})), "server");
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  const ConnectionPtr far = b->sink.wait_for_connection();
  ASSERT_NE(far, nullptr);
  EXPECT_EQ((*near)->peer().role, "server");
  EXPECT_EQ(far->peer().role, "default");
}

// Whether it dials or is dialled: otherwise its calls would have the rights of a role that it only
// claims.
TEST_F(GrpcTlsTest, NobodyHasARoleThatItsCertificateDoesNotGive) {
  auto a = started(1, shared(site_.make({.uris = {uri("w1")}})));
  auto b = started(2, shared(site_.make({.uris = {uri("w2")}})), "server");
  const absl::Status dialled = connect(*a, *b).status();
  EXPECT_EQ(dialled.code(), absl::StatusCode::kPermissionDenied) << dialled;
  EXPECT_THAT(std::string(dialled.message()),
              HasSubstr("the certificate of worker 'w2' has role 'default', but its hello has "
                        "'server'"));
  b->sink.expect_dialling();
  const absl::Status dialling = connect(*b, *a).status();
  EXPECT_EQ(dialling.code(), absl::StatusCode::kPermissionDenied) << dialling;
  EXPECT_TRUE(is_logged("has role 'default'"));
  EXPECT_THAT(a->sink.accepted(), ::testing::IsEmpty());
}

// An identity that a test replaces.
class Replaceable {
 public:
  explicit Replaceable(TlsCredentials first)
      : identity(*TlsIdentity::watching(
            std::move(first),
            [this]() -> absl::StatusOr<std::optional<TlsCredentials>> {
              MutexLock lock(mutex_);
              return std::exchange(next_, std::nullopt);
            },
            std::chrono::milliseconds(1))) {}
  void replace(TlsCredentials next) {
    const std::string chain = next.chain;
    {
      MutexLock lock(mutex_);
      next_ = std::move(next);
    }
    EXPECT_TRUE(eventually([&] { return identity->current()->chain == chain; }));
  }

 private:
  Mutex mutex_;
  std::optional<TlsCredentials> next_ ABSL_GUARDED_BY(mutex_);

 public:
  const std::shared_ptr<TlsIdentity> identity;  // last: its thread uses the above
};

// Both ends get new keys and certificates all the time, and finally those of a new authority.
TEST_F(GrpcTlsTest, NewCertificatesAreUsedAndNoDialFails) {
  const CertificateMaker later;
  const auto both = [&](TlsCredentials made) {
    made.authorities = site_.certificate() + later.certificate();
    return made;
  };
  const auto old_of = [&](const char* name) { return both(site_.make({.uris = {uri(name)}})); };
  const auto new_of = [&](const char* name) { return both(later.make({.uris = {uri(name)}})); };
  Replaceable mine(old_of("w1")), its(old_of("w2"));
  auto a = started(1, mine.identity), b = started(2, its.identity);
  const auto standing = connect(*a, *b);
  ASSERT_TRUE(standing.ok()) << standing.status();
  size_t closed = 0;
  const auto dial = [&](Nanoseconds during, const auto& replace) {
    const TimePoint until = clock_.now() + during;
    while (clock_.now() < until) {
      replace();
      const auto connection = connect(*a, *b);
      ASSERT_TRUE(connection.ok()) << connection.status();
      (*connection)->close();
      ASSERT_TRUE(a->sink.wait_for_closed(++closed));
    }
  };
  dial(std::chrono::seconds(3), [&] {
    mine.replace(old_of("w1"));
    its.replace(old_of("w2"));
  });
  mine.replace(new_of("w1"));
  its.replace(new_of("w2"));
  dial(std::chrono::seconds(3), [] {});  // gRPC looks every second
  // Those of the old authority are refused now, so the new ones must be in use.
  const auto only_later = [&](const char* name) { return later.make({.uris = {uri(name)}}); };
  mine.replace(only_later("w1"));
  its.replace(only_later("w2"));
  dial(std::chrono::seconds(3), [] {});
  auto c = started(3, shared(both(site_.make({.uris = {uri("w3")}}))));
  const absl::Status refused = connect(*c, *b).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the far end ended the connection"));
  EXPECT_TRUE((*standing)->send(numbered_frame(1)));
  EXPECT_TRUE(b->sink.wait_for_frames(1));
}

TEST_F(GrpcTlsTest, ANobodyIsUnavailableAsWithoutTls) {
  auto a = started(1, credentials_of("w1"));
  std::string address;
  {
    auto b = started(2, credentials_of("w2"));
    address = b->transport->address();
  }
  const absl::Status status = connect(*a, address, {"group", "w2", {2, 1}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(GrpcTlsTest, APlainDiallerIsNotRead) {
  auto b = started(2, credentials_of("w2"));
  auto plain = started(1, nullptr);
  const absl::Status status = connect(*plain, *b).status();
  EXPECT_FALSE(status.ok());
  const testing::RawStream raw(b->transport->address(), {"x"}, "hello");
  EXPECT_EQ(raw.wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(b->sink.accepted(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace weft
