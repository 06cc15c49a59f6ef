#include "weft/rpc/rendezvous/memory_store.h"

#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(MemoryStore, GivesBackWhatWasSet) {
  MemoryStore store;
  EXPECT_EQ(*store.try_get("key"), std::nullopt);
  ASSERT_TRUE(store.set("key", "value").ok());
  EXPECT_EQ(*store.get("key", absl::ZeroDuration()), "value");
  EXPECT_EQ(**store.try_get("key"), "value");
}

TEST(MemoryStore, WaitsForAKeyThatAnotherThreadSets) {
  MemoryStore store;
  std::thread setter([&] { ASSERT_TRUE(store.set("late", "1").ok()); });
  EXPECT_EQ(*store.get("late", absl::InfiniteDuration()), "1");
  setter.join();
}

TEST(MemoryStore, NamesTheKeyThatDidNotAppear) {
  MemoryStore store;
  ASSERT_TRUE(store.set("here", "1").ok());
  const absl::Status status = store.wait({"here", "missing"}, absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_NE(status.message().find("missing"), absl::string_view::npos) << status;
}

TEST(MemoryStore, AddsToTheDecimalNumberUnderTheKey) {
  MemoryStore store;
  EXPECT_EQ(*store.add("n", 3), 3);
  EXPECT_EQ(*store.add("n", -5), -2);
  EXPECT_EQ(*store.get("n", absl::ZeroDuration()), "-2");
  ASSERT_TRUE(store.set("n", "text").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(store.add("n", 1).status()));
}

TEST(MemoryStore, ExchangesOnlyWhatWasExpected) {
  MemoryStore store;
  EXPECT_EQ(*store.compare_set("key", "other", "x"), "");
  EXPECT_EQ(*store.try_get("key"), std::nullopt);
  EXPECT_EQ(*store.compare_set("key", "", "a"), "a");
  EXPECT_EQ(*store.compare_set("key", "", "b"), "a");
  EXPECT_EQ(*store.compare_set("key", "a", "b"), "b");
}

}  // namespace
}  // namespace weft
