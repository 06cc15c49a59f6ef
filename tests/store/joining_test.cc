// What joining costs a job's store, and whom a joining worker believes.
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/rendezvous/dynamic_join.h"
#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/rendezvous/static_join.h"
#include "weft/store/store_handle.h"
#include "weft/tests/store/core_calls.h"

namespace weft {
namespace {

using rpc_internal::JoinKeys;
using rpc_internal::MemberRecord;
using ::testing::HasSubstr;

class JoiningTest : public ::testing::Test {
 protected:
  // Writes the record of a worker, as one that has joined before. If it is proven, `author` is who
  // wrote it.
  void add_member(uint32_t index, const std::string& author = "") {
    MemberRecord record;
    record.member = {{index, 1}, absl::StrCat("w", index), index, "127.0.0.1:1"};
    calls_->author = author;
    EXPECT_TRUE(store_.set(keys_.member(index), record.encode()).ok());
    EXPECT_TRUE(store_.set(keys_.name(record.member.name), absl::StrCat(index)).ok());
    calls_->author = "";
  }
  static JoinRequest request(uint32_t index, uint32_t size) {
    JoinRequest request;
    request.name = absl::StrCat("w", index);
    request.rank = index;
    request.world_size = size;
    request.address = "127.0.0.1:1";
    return request;
  }
  // How many calls the last of so many workers makes.
  int calls_of_last(uint32_t size, bool dynamic) {
    calls_->reset();
    for (uint32_t index = 0; index + 1 < size; ++index) add_member(index);
    if (dynamic) EXPECT_TRUE(store_.add(keys_.indices(), size - 1).ok());
    const int before = calls_->count;
    const auto joined = dynamic ? join_dynamic_group(store_, request(size - 1, size), {})
                                : join_static_group(store_, request(size - 1, size));
    EXPECT_TRUE(joined.ok()) << joined.status();
    if (joined.ok()) EXPECT_EQ(joined->members.size(), size);
    return calls_->count - before;
  }

  testing::CoreCalls* const calls_ = new testing::CoreCalls;  // store_ owns it
  StoreHandle store_{std::unique_ptr<StoreCalls>(calls_), absl::Seconds(20)};
  const JoinKeys keys_{"weft", 0};
};

TEST_F(JoiningTest, TheNumberOfCallsDoesNotGrowWithTheGroup) {
  for (const bool dynamic : {false, true}) {
    const int few = calls_of_last(2, dynamic);
    EXPECT_LE(few, 12);
    EXPECT_EQ(calls_of_last(64, dynamic), few) << dynamic;
  }
}

TEST_F(JoiningTest, ARecordThatAnotherWorkerHasWrittenIsRefused) {
  add_member(0, "w7");
  const absl::Status refused = join_static_group(store_, request(1, 2)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'w0' was written by worker 'w7'"));
}

TEST_F(JoiningTest, NobodyElseCanSayThatAWorkerHasLeft) {
  add_member(0, "w0");
  EXPECT_TRUE(store_.add(keys_.indices(), 1).ok());
  calls_->author = "w7";
  EXPECT_TRUE(store_.set(keys_.left(0), "1").ok());
  calls_->author = "";
  const auto joined = join_dynamic_group(store_, request(1, 2), {});
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->members.size(), 2u);
}

TEST_F(JoiningTest, ADeathRecordNamesItsProvenAuthor) {
  calls_->author = "w7";
  EXPECT_TRUE(store_
                  .set("weft/weft/0/death_record/1",
                       absl::StrCat(WorkerId{1, 1}.bits(), " ", WorkerId{2, 1}.bits(), " silent"))
                  .ok());
  DeathRecords records(std::shared_ptr<RendezvousStore>(&store_, [](RendezvousStore*) {}), "weft",
                       0);
  const auto read = records.read();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->front().reason, HasSubstr("written by worker 'w7'"));
}

}  // namespace
}  // namespace weft
