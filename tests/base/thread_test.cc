#include "weft/base/thread.h"

#include <atomic>
#include <functional>
#include <pthread.h>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/async/serial_thread.h"
#include "weft/base/clock.h"
#include "weft/base/rpc_error.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status thrown_by(const std::function<void()>& code) {
  try {
    code();
  } catch (const RpcError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

TEST(ThreadTest, RunsWhatItIsGiven) {
  std::atomic<bool> ran{false};
  absl::StatusOr<std::thread> thread = start_thread("a test", [&] { ran = true; });
  ASSERT_TRUE(thread.ok());
  thread->join();
  EXPECT_TRUE(ran);
}

std::string name_of_this_thread() {
  char name[16] = "";
  EXPECT_EQ(::pthread_getname_np(::pthread_self(), name, sizeof(name)), 0);
  return name;
}

// Linux gives a new thread the name of the thread that starts it. Others read these names:
// ProcessorWaits counts only the waits of threads whose names say that they serve a worker.
TEST(ThreadTest, AThreadIsNamedAfterItsPurposeNotAfterTheOneThatStartedIt) {
  std::string serving, part, questions;
  start_needed_thread("the transport's queue", [&] {
    ::pthread_setname_np(::pthread_self(), "weft serving");
    start_needed_thread("a part", [&] { part = name_of_this_thread(); }).join();
    start_needed_thread("questions to the rendezvous store", [&] {
      questions = name_of_this_thread();
    }).join();
    serving = name_of_this_thread();
  }).join();
  EXPECT_EQ(serving, "weft serving");
  EXPECT_EQ(part, "weft part");
  EXPECT_EQ(questions, "weft questions");
}

// No address space has room for such a stack. The library sees the same error as when the system
// has no process left.
TEST(ThreadTest, WhatTheSystemRefusesIsAnErrorThatNamesThePurpose) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_attr_init(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  const absl::Status refused = start_thread("the tide", [] {}).status();
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("no thread can be started for the tide"), HasSubstr("unavailable")));
  start_needed_thread("the next test", [] {}).join();
}

TEST(ThreadTest, AnObjectThatNeedsItsThreadThrowsWhereNoneIsLeft) {
  const ThreadLimit none(0);
  EXPECT_EQ(thrown_by([] { SystemClock clock; }).code(), absl::StatusCode::kResourceExhausted);
  const absl::Status refused =
      thrown_by([] { SerialThread thread(SerialThread::AtEnd::kDrop, "the mill"); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("for the mill"));
  EXPECT_EQ(none.refused(), 2);
}

TEST(ThreadTest, ALimitLetsItsNumberThrough) {
  const ThreadLimit two(2);
  start_needed_thread("a test", [] {}).join();
  start_needed_thread("a test", [] {}).join();
  EXPECT_FALSE(start_thread("a test", [] {}).ok());
  EXPECT_EQ(two.refused(), 1);
}

}  // namespace
}  // namespace weft
