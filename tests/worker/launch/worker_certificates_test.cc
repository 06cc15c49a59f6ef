// The launchers of two nodes get certificates for their processes.
#include "weft/worker/launch/certificates/worker_certificates.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/rpc/rendezvous/static_join.h"
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
  absl::Status exchange(uint32_t node) {
    return nodes_[node].exchange(launchers_, place_, node, records_);
  }
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
  ASSERT_TRUE(exchange(0).ok());
  ASSERT_TRUE(exchange(1).ok());
  EXPECT_EQ(nodes_[1].store(), nodes_[0].store());
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const EnvironmentReader read = environment(rank / 2, rank % 2);
    const std::string role = rank == 0 ? "server" : "trainer";
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
  ASSERT_TRUE(exchange(0).ok());
  EXPECT_TRUE(reach(find_store_identity("run", environment(0, 1))).ok());
  // Another authority, also that of the job's secret, does not help.
  const auto authority = JobAuthority::create("run");
  ASSERT_TRUE(authority.ok()) << authority.status();
  auto forged = authority->issue(*certificate_name("run", "server", name_of_rank(0)));
  ASSERT_TRUE(forged.ok()) << forged.status();
  EXPECT_FALSE(reach(StoreIdentity{std::make_shared<TlsIdentity>(*std::move(forged)), true}).ok());
}

TEST_F(WorkerCertificatesGrpcTest, AWorkerCannotPoseAsTheStore) {
  make_keys();
  ASSERT_TRUE(exchange(0).ok());
  RendezvousOptions options = place_;
  options.port = 0;
  options.identity = *find_store_identity("run", environment(0, 0));
  const auto impostor = host_rendezvous_store(options);
  ASSERT_TRUE(impostor.ok()) << impostor.status();
  options.port = impostor->port;
  options.identity = *find_store_identity("run", environment(0, 1));
  options.timeout = absl::Seconds(1);
  EXPECT_THAT(std::string(connect_rendezvous_store(options).status().message()),
              HasSubstr("the certificate of worker 'rank.0' answers there"));
}

// Each static group reads the store that the test has filled.
TEST_F(WorkerCertificatesGrpcTest, ARankCannotHaveTheNameOfAnother) {
  make_keys();
  ASSERT_TRUE(exchange(0).ok());
  RendezvousOptions options = place_;
  std::vector<std::unique_ptr<StoreHandle>> stores;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    options.identity = *find_store_identity("run", environment(0, rank));
    stores.push_back(*connect_to_store(nodes_[0].store(), options));
  }
  JoinRequest request;
  request.group = "run";
  request.name = "ps";
  request.world_size = 2;
  request.address = "a:1";
  request.timeout = absl::Seconds(10);
  // Rank 1 writes a record with the name, and does not claim the name.
  const rpc_internal::JoinKeys keys("run", 0);
  rpc_internal::MemberRecord forged;
  forged.member.id = {1, 1};
  forged.member.name = "ps";
  forged.member.address = "b:1";
  ASSERT_TRUE(stores[1]->set(keys.member(1), forged.encode()).ok());
  EXPECT_THAT(std::string(join_static_group(*stores[0], request).status().message()),
              HasSubstr("rank 1 says that it is worker 'ps', but has not claimed the name"));
  const auto later = rpc_internal::find_incarnation(*stores[0], keys, {1, 1});
  EXPECT_TRUE(absl::IsPermissionDenied(later.status())) << later.status();
  // The record of another rank is no better.
  EXPECT_TRUE(absl::IsPermissionDenied(stores[1]->set(keys.member(0), forged.encode())));
  EXPECT_FALSE(forged.check_author(name_of_rank(0)).ok());
  EXPECT_TRUE(forged.check_author(name_of_rank(1)).ok());
  EXPECT_EQ(*forged.has_left(StoredValue{"1", name_of_rank(1)}), true);
  EXPECT_EQ(*forged.has_left(StoredValue{"1", name_of_rank(0)}), false);
}

// A call that the store did not answer in time is made again.
TEST_F(WorkerCertificatesGrpcTest, ASecondExchangeChangesNothing) {
  make_keys();
  ASSERT_TRUE(exchange(0).ok());
  const auto first = launchers_.try_get("weft/launch/certificates/1");
  const auto variables = nodes_[0].variables();
  ASSERT_TRUE(exchange(0).ok());
  EXPECT_EQ(*launchers_.try_get("weft/launch/certificates/1"), *first);
  EXPECT_EQ(nodes_[0].variables(), variables);
}

TEST_F(WorkerCertificatesGrpcTest, BadKeysAndMissingCertificatesAreErrorsThatSayWhose) {
  make_keys();
  // The second would make OpenSSL ask for a password.
  for (const char* bad : {"no key",
                          "-----BEGIN PUBLIC KEY-----\nProc-Type: 4,ENCRYPTED\n"
                          "DEK-Info: AES-256-CBC,00000000000000000000000000000000\n\nAAAA\n"
                          "-----END PUBLIC KEY-----\n"}) {
    records_[1].public_keys[1] = bad;
    EXPECT_THAT(std::string(exchange(0).message()), HasSubstr("the key of rank 3: the text is no"));
  }
  records_[1].public_keys.pop_back();
  EXPECT_THAT(std::string(exchange(0).message()), HasSubstr("node 1 has sent only 1 keys"));
  EXPECT_THAT(std::string(exchange(1).message()), HasSubstr("no certificates"));
  ASSERT_TRUE(launchers_.set("weft/launch/certificates/1", "{}").ok());
  EXPECT_TRUE(absl::IsInternal(exchange(1)));
  ASSERT_TRUE(launchers_
                  .set("weft/launch/certificates/1",
                       R"({"store": "a:1", "authority": "", "certificates": ["one"]})")
                  .ok());
  EXPECT_THAT(std::string(exchange(1).message()), HasSubstr("1 certificates for 2 processes"));
}

TEST_F(WorkerCertificatesGrpcTest, ARoleThatCannotStandInACertificateIsNamed) {
  make_keys();
  records_[0].roles[0].name = "a b";
  EXPECT_THAT(std::string(exchange(0).message()), HasSubstr("--certificates: the role 'a b'"));
}

TEST_F(WorkerCertificatesGrpcTest, ACertificateForAnotherKeyIsRefused) {
  make_keys();
  std::swap(records_[1].public_keys[0], records_[1].public_keys[1]);
  ASSERT_TRUE(exchange(0).ok());
  EXPECT_THAT(std::string(exchange(1).message()), HasSubstr("the certificate of process 0"));
}

// The kernel says whose the processes are that call a unix socket.
TEST_F(WorkerCertificatesGrpcTest, OnOneHostTheWorkersUseTheLaunchersStore) {
  make_keys();
  place_.security = SecurityMode::kAuto;
  place_.port = 1234;
  ASSERT_TRUE(exchange(0).ok());
  EXPECT_EQ(nodes_[0].store(), "unix:weft-store-1234");
}

}  // namespace
}  // namespace weft::launch
