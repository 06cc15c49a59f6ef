// Launchers of two nodes get certificates for their processes. Name has Grpc: the workers' store is
// served.
#include "weft/worker/launch/certificates/worker_certificates.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/security/worker_identity.h"
#include "weft/tests/base/environment_of.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;

class WorkerCertificatesGrpcTest : public ::testing::Test {
 protected:
  WorkerCertificatesGrpcTest() {
    place_.security = SecurityMode::kMtls;
    place_.timeout = place_.call_timeout = absl::Seconds(10);
  }
  // Node 0 has a server and a trainer, node 1 two trainers.
  void make_keys() {
    for (const std::vector<Role>& roles :
         {std::vector<Role>{{"server", 1}, {"trainer", 1}}, std::vector<Role>{{"trainer", 2}}}) {
      auto made = WorkerCertificates::create(2);
      ASSERT_TRUE(made.ok()) << made.status();
      records_.push_back({.nodes = 2, .roles = roles, .run_id = "run"});
      records_.back().public_keys = made->public_keys();
      nodes_.push_back(*std::move(made));
    }
  }
  absl::Status certify() { return nodes_[0].certify(launchers_, records_, place_); }
  // What a process reads of its environment.
  EnvironmentReader environment(uint32_t node, uint32_t local_rank) const {
    std::map<std::string, std::string> variables;
    const auto all = nodes_[node].variables();
    for (const std::string& entry : all[local_rank]) {
      const size_t equals = entry.find('=');
      variables[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
    return weft::testing::environment_of(variables);
  }
  absl::Status reach(const absl::StatusOr<StoreIdentity>& identity) const {
    if (!identity.ok()) return identity.status();
    RendezvousOptions options = place_;
    options.timeout = absl::Seconds(1);
    options.identity = *identity;
    const auto store = connect_to_store(nodes_[0].store(), options);
    return store.ok() ? (*store)->set("key", "value") : store.status();
  }

  MemoryStore launchers_;
  RendezvousOptions place_;
  std::vector<WorkerCertificates> nodes_;
  std::vector<NodeRecord> records_;
};

TEST_F(WorkerCertificatesGrpcTest, EachRankProvesItsRankAndRoleAndNoOther) {
  make_keys();
  ASSERT_TRUE(certify().ok());
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const uint32_t node = rank / 2;
    if (rank % 2 == 0) ASSERT_TRUE(nodes_[node].take(launchers_, node).ok());
    const EnvironmentReader read = environment(node, rank % 2);
    const std::string role = rank == 0 ? "server" : "trainer";
    const auto found = find_worker_identity("run", role, {"any name", rank}, read);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);  // a blank
    const auto own = find_worker_identity("run", role, {"any.name", rank}, read);
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_EQ((*own)->current()->name.worker, name_of_rank(rank));
    for (const auto& [other_role, other_rank] :
         {std::pair(role, rank + 1), std::pair(std::string("admin"), rank)}) {
      const auto other = find_worker_identity("run", other_role, {"any.name", other_rank}, read);
      EXPECT_TRUE(absl::IsInvalidArgument(other.status())) << other.status();
    }
    EXPECT_TRUE(absl::IsInvalidArgument(
        find_worker_identity("other", role, {"any.name", rank}, read).status()));
  }
}

TEST_F(WorkerCertificatesGrpcTest, OnlyTheWorkersReachTheirStore) {
  make_keys();
  ASSERT_TRUE(certify().ok());
  ASSERT_TRUE(nodes_[0].take(launchers_, 0).ok());
  EXPECT_TRUE(reach(find_store_identity("run", environment(0, 1))).ok());
  // The job's secret does not help, nor does another launcher's authority.
  const auto authority = JobAuthority::create("run");
  ASSERT_TRUE(authority.ok()) << authority.status();
  auto forged = authority->issue(*certificate_name("run", "server", name_of_rank(0)));
  ASSERT_TRUE(forged.ok()) << forged.status();
  const absl::Status refused =
      reach(StoreIdentity{std::make_shared<TlsIdentity>(*std::move(forged)), true});
  EXPECT_FALSE(refused.ok());
}

// A call that the store did not answer in time is made again.
TEST_F(WorkerCertificatesGrpcTest, CertifyingTwiceChangesNothing) {
  make_keys();
  ASSERT_TRUE(certify().ok());
  const auto first = launchers_.try_get("weft/launch/certificates/1");
  ASSERT_TRUE(certify().ok());
  EXPECT_EQ(*launchers_.try_get("weft/launch/certificates/1"), *first);
}

TEST_F(WorkerCertificatesGrpcTest, BadKeysAndMissingCertificatesAreErrorsThatSayWhose) {
  make_keys();
  records_[1].public_keys[1] = "no key";
  EXPECT_THAT(std::string(certify().message()), HasSubstr("the key of rank 3: the text is no"));
  records_[1].public_keys.pop_back();
  EXPECT_THAT(std::string(certify().message()), HasSubstr("node 1 has sent only 1 keys"));
  EXPECT_THAT(std::string(nodes_[1].take(launchers_, 1).message()), HasSubstr("no certificates"));
  ASSERT_TRUE(launchers_.set("weft/launch/certificates/1", "{}").ok());
  EXPECT_TRUE(absl::IsInternal(nodes_[1].take(launchers_, 1)));
}

TEST_F(WorkerCertificatesGrpcTest, ACertificateForAnotherKeyIsRefused) {
  make_keys();
  std::swap(records_[1].public_keys[0], records_[1].public_keys[1]);
  ASSERT_TRUE(certify().ok());
  EXPECT_THAT(std::string(nodes_[1].take(launchers_, 1).message()),
              HasSubstr("the certificate of process 0"));
}

}  // namespace
}  // namespace weft::launch
