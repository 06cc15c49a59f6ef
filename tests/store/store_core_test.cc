#include "weft/store/store_core.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Read = wire::StoreCall::Read;

constexpr uint64_t kInstance = 77;

wire::StoreCall new_call() {
  wire::StoreCall call;
  call.set_version(kStoreVersion);
  return call;
}
wire::StoreCall set(const std::string& key, const std::string& value) {
  wire::StoreCall call = new_call();
  call.mutable_set()->set_key(key);
  call.mutable_set()->set_value(value);
  return call;
}
wire::StoreCall add(const std::string& key, int64_t amount) {
  wire::StoreCall call = new_call();
  call.mutable_add()->set_key(key);
  call.mutable_add()->set_amount(amount);
  return call;
}
wire::StoreCall compare_set(const std::string& key, const std::string& expected,
                            const std::string& desired) {
  wire::StoreCall call = new_call();
  call.mutable_compare_set()->set_key(key);
  call.mutable_compare_set()->set_expected(expected);
  call.mutable_compare_set()->set_desired(desired);
  return call;
}
wire::StoreCall erase(const std::string& key) {
  wire::StoreCall call = new_call();
  call.mutable_erase()->set_key(key);
  return call;
}
wire::StoreCall hold(const std::string& key) {
  wire::StoreCall call = new_call();
  call.mutable_hold()->set_key(key);
  call.mutable_hold()->set_value("held");
  return call;
}
wire::StoreCall read(const std::vector<std::string>& keys, Read::Until until = Read::NOW) {
  wire::StoreCall call = new_call();
  call.mutable_read()->set_until(until);
  for (const std::string& key : keys) call.mutable_read()->add_keys(key);
  return call;
}
absl::StatusCode code(const wire::StoreReply& reply) {
  return static_cast<absl::StatusCode>(reply.code());
}

class StoreCoreTest : public ::testing::Test {
 protected:
  explicit StoreCoreTest(StoreLimits limits = {}) : core_(kInstance, limits) {}

  // Of a call that is answered at once, and answers no other.
  wire::StoreReply ask(const wire::StoreCall& call, const std::string& author = "") {
    const StoreCore::Ticket ticket = next_++;
    const StoreCore::Answers answers = core_.call(ticket, author, call);
    EXPECT_EQ(answers.size(), 1u);
    if (answers.size() != 1) return {};
    EXPECT_EQ(answers[0].first, ticket);
    return answers[0].second;
  }
  // The tickets that are answered by a call that begins.
  std::vector<StoreCore::Ticket> begin(StoreCore::Ticket ticket, const wire::StoreCall& call) {
    return tickets(core_.call(ticket, "", call));
  }
  static std::vector<StoreCore::Ticket> tickets(const StoreCore::Answers& answers) {
    std::vector<StoreCore::Ticket> result;
    for (const auto& [ticket, reply] : answers) {
      EXPECT_EQ(reply.code(), 0u) << reply.error();
      result.push_back(ticket);
    }
    return result;
  }
  std::string value(const std::string& key) {
    const wire::StoreReply reply = ask(read({key}));
    return reply.values(0).exists() ? reply.values(0).value() : "(absent)";
  }

  StoreCore core_;
  StoreCore::Ticket next_ = 1000;
};

TEST_F(StoreCoreTest, KeepsWhatIsWritten) {
  EXPECT_EQ(value("key"), "(absent)");
  EXPECT_EQ(ask(set("key", "a")).instance(), kInstance);
  EXPECT_EQ(value("key"), "a");
  EXPECT_EQ(ask(add("n", 3)).number(), 3);
  EXPECT_EQ(ask(add("n", -5)).number(), -2);
  EXPECT_EQ(value("n"), "-2");
  EXPECT_EQ(ask(compare_set("key", "x", "b")).values(0).value(), "a");
  EXPECT_EQ(ask(compare_set("key", "a", "b")).values(0).value(), "b");
  EXPECT_FALSE(ask(compare_set("none", "x", "b")).values(0).exists());
  EXPECT_EQ(ask(compare_set("none", "", "b")).values(0).value(), "b");
  wire::StoreCall count = new_call();
  count.mutable_count();
  EXPECT_EQ(ask(count).number(), 3);
  EXPECT_EQ(ask(erase("key")).number(), 1);
  EXPECT_EQ(ask(erase("key")).number(), 0);
  EXPECT_EQ(value("key"), "(absent)");
  (void)ask(erase("n"));
  (void)ask(erase("none"));
  EXPECT_EQ(core_.bytes(), 0u);
}

TEST_F(StoreCoreTest, AWaitEndsWhenAllItsKeysExist) {
  EXPECT_THAT(begin(1, read({"a", "b", "a"}, Read::ALL_EXIST)), IsEmpty());
  EXPECT_THAT(begin(2, set("a", "1")), ElementsAre(2));
  EXPECT_THAT(begin(3, erase("a")), ElementsAre(3));
  EXPECT_THAT(begin(4, set("b", "2")), ElementsAre(4));
  const StoreCore::Answers answers = core_.call(5, "", set("a", "3"));
  EXPECT_THAT(tickets(answers), ElementsAre(1, 5));
  EXPECT_EQ(answers[0].second.values(0).value(), "3");
  EXPECT_EQ(answers[0].second.values(1).value(), "2");
  EXPECT_EQ(core_.waiting(), 0u);
}

TEST_F(StoreCoreTest, AWaitForTheEndOfKeysEndsWhenNoneExists) {
  EXPECT_THAT(begin(1, read({"a"}, Read::NONE_EXISTS)), ElementsAre(1));
  (void)ask(set("a", ""));
  EXPECT_THAT(begin(2, read({"a"}, Read::NONE_EXISTS)), IsEmpty());
  EXPECT_THAT(begin(3, erase("a")), ElementsAre(2, 3));
}

TEST_F(StoreCoreTest, AWaitThatItsCallerGivesUpIsForgotten) {
  EXPECT_THAT(begin(1, read({"a"}, Read::ALL_EXIST)), IsEmpty());
  EXPECT_THAT(core_.ended(1), IsEmpty());
  EXPECT_THAT(begin(2, set("a", "1")), ElementsAre(2));
  EXPECT_EQ(core_.waiting(), 0u);
}

TEST_F(StoreCoreTest, AHeldKeyEndsWithItsCall) {
  EXPECT_THAT(begin(1, hold("alive")), IsEmpty());
  EXPECT_EQ(value("alive"), "held");
  EXPECT_EQ(code(ask(hold("alive"))), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code(ask(set("alive", "x"))), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(ask(erase("alive"))), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(begin(2, read({"alive"}, Read::NONE_EXISTS)), IsEmpty());
  EXPECT_THAT(tickets(core_.ended(1)), ElementsAre(2));
  EXPECT_EQ(value("alive"), "(absent)");
  EXPECT_THAT(begin(3, hold("alive")), IsEmpty());
}

TEST_F(StoreCoreTest, ARepeatedChangeIsMadeOnce) {
  wire::StoreCall call = add("n", 1);
  call.set_change(5);
  EXPECT_EQ(ask(call).number(), 1);
  EXPECT_EQ(ask(call).number(), 1);
  call.set_change(6);
  EXPECT_EQ(ask(call).number(), 2);
  wire::StoreCall exchange = compare_set("key", "", "mine");
  exchange.set_change(7);
  EXPECT_EQ(ask(exchange).values(0).value(), "mine");
  (void)ask(set("key", "other"));
  EXPECT_EQ(ask(exchange).values(0).value(), "mine");
  EXPECT_EQ(value("key"), "other");
}

TEST_F(StoreCoreTest, TheNumberOfAnotherWorkersChangeIsNoRepetition) {
  wire::StoreCall call = add("n", 1);
  call.set_change(5);
  EXPECT_EQ(ask(call, "worker1").number(), 1);
  EXPECT_EQ(ask(call, "worker2").number(), 2);
}

TEST_F(StoreCoreTest, AReadMayLeaveTheValuesOut) {
  (void)ask(set("key", "value"), "worker1");
  wire::StoreCall call = read({"key", "none"});
  call.mutable_read()->set_without_values(true);
  const wire::StoreReply reply = ask(call);
  EXPECT_TRUE(reply.values(0).exists());
  EXPECT_EQ(reply.values(0).value() + reply.values(0).author(), "");
  EXPECT_FALSE(reply.values(1).exists());
}

TEST_F(StoreCoreTest, RemembersSoManyChangesAndSoManyBytes) {
  wire::StoreCall first = add("n", 1);
  first.set_change(1);
  (void)ask(first);
  for (uint64_t i = 0; i < StoreCore::kChanges - 1; ++i) {
    wire::StoreCall other = add("m", 1);
    other.set_change(2 + i);
    (void)ask(other);
  }
  EXPECT_EQ(ask(first).number(), 1);
  wire::StoreCall last = add("m", 1);
  last.set_change(1'000'000);
  (void)ask(last);
  EXPECT_EQ(ask(first).number(), 2);
  // Replies of 1 MiB leave room for 31 others.
  (void)ask(set("large", std::string(size_t{1} << 20, 'x')));
  for (uint64_t i = 0; i < 32; ++i) {
    wire::StoreCall exchange = compare_set("large", "no", "x");
    exchange.set_change(2'000'000 + i);
    (void)ask(exchange);
  }
  EXPECT_EQ(ask(first).number(), 3);
}

TEST_F(StoreCoreTest, CallsForAnotherStoreOrVersionAreRefused) {
  wire::StoreCall call = set("key", "x");
  call.set_instance(kInstance + 1);
  EXPECT_EQ(code(ask(call)), absl::StatusCode::kFailedPrecondition);
  call.set_instance(kInstance);
  EXPECT_EQ(ask(call).code(), 0u);
  call.set_version(2);
  EXPECT_EQ(code(ask(call)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(ask(new_call())), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoreCoreTest, BadKeysValuesAndNumbersAreRefused) {
  EXPECT_EQ(code(ask(set("", "x"))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(ask(set(std::string(4097, 'k'), "x"))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(ask(set("key", std::string((size_t{1} << 20) + 1, 'v')))),
            absl::StatusCode::kInvalidArgument);
  (void)ask(set("key", "text"));
  const wire::StoreReply refused = ask(add("key", 1));
  EXPECT_EQ(code(refused), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.error(), HasSubstr("'key' holds no number"));
  (void)ask(set("most", absl::StrCat(INT64_MAX)));
  EXPECT_EQ(code(ask(add("most", 1))), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(value("most"), absl::StrCat(INT64_MAX));
}

TEST_F(StoreCoreTest, AKeyBelongsToTheProvenWorkerThatWroteIt) {
  EXPECT_EQ(ask(set("key", "a"), "worker1").code(), 0u);
  EXPECT_EQ(ask(read({"key"})).values(0).author(), "worker1");
  for (const wire::StoreCall& call :
       {set("key", "b"), compare_set("key", "a", "b"), erase("key")}) {
    for (const char* other : {"worker2", ""}) {
      const wire::StoreReply refused = ask(call, other);
      EXPECT_EQ(code(refused), absl::StatusCode::kPermissionDenied);
      EXPECT_THAT(refused.error(), HasSubstr("belongs to worker 'worker1'"));
    }
  }
  EXPECT_EQ(ask(compare_set("key", "x", "b"), "worker2").values(0).value(), "a");
  EXPECT_EQ(ask(set("key", "b"), "worker1").code(), 0u);
  EXPECT_EQ(value("key"), "b");
}

TEST_F(StoreCoreTest, NumbersBelongToNobodyAndCanOnlyBeAddedTo) {
  EXPECT_EQ(ask(add("n", 1), "worker1").number(), 1);
  EXPECT_EQ(ask(add("n", 1), "worker2").number(), 2);
  EXPECT_EQ(code(ask(set("n", "0"), "worker2")), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(ask(erase("n"), "worker1")), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ask(set("n", "0")).code(), 0u) << "nothing is proven without names";
  EXPECT_EQ(ask(set("own", "5"), "worker1").code(), 0u);
  EXPECT_EQ(ask(add("own", 1), "worker1").number(), 6);
  EXPECT_EQ(code(ask(add("own", 1), "worker2")), absl::StatusCode::kPermissionDenied);
}

class FullStoreCoreTest : public StoreCoreTest {
 protected:
  FullStoreCoreTest()
      : StoreCoreTest({.most_keys = 3,
                       .most_bytes = 100 + 3 * StoreCore::kEntryBytes,
                       .most_keys_of_a_read = 3,
                       .most_waiting = 2,
                       .most_waiting_bytes = 60 + 4 * StoreCore::kEntryBytes,
                       .most_reply = 50}) {}
};

TEST_F(FullStoreCoreTest, KeysAndBytesAreBounded) {
  for (const char* key : {"a", "b", "c"}) EXPECT_EQ(ask(set(key, "1")).code(), 0u);
  EXPECT_EQ(code(ask(set("d", "1"))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(ask(add("d", 1))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(ask(hold("d"))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ask(set("a", std::string(95, 'x'))).code(), 0u);
  EXPECT_EQ(code(ask(set("b", "12"))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(value("b"), "1");
  EXPECT_EQ(code(ask(read({"a"}))), absl::StatusCode::kResourceExhausted) << "a long answer";
  EXPECT_EQ(code(ask(read({"b", "b", "b", "b"}))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(ask(read({""}))), absl::StatusCode::kInvalidArgument);
}

TEST_F(FullStoreCoreTest, WaitingCallsAreBounded) {
  EXPECT_THAT(begin(1, read({"x"}, Read::ALL_EXIST)), IsEmpty());
  EXPECT_THAT(begin(2, hold("held")), IsEmpty());
  EXPECT_EQ(code(ask(read({"y"}, Read::ALL_EXIST))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(ask(hold("y"))), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(core_.ended(2), IsEmpty());
  EXPECT_EQ(code(ask(read({std::string(60, 'y')}, Read::ALL_EXIST))),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(begin(3, read({"y"}, Read::ALL_EXIST)), IsEmpty());
}

}  // namespace
}  // namespace weft
