// Calls whose caller reads the reply itself (docs/data_plane.md, "Who reads").
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "weft/async/future.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/worker_world.h"

namespace direct_reply_test {

using namespace std::chrono_literals;
using weft::CallScope;
using weft::Promise;
using weft::WorkerScope;
using weft::testing::error_of;
using weft::testing::eventually;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;

// What its decoder found on its thread.
struct Witness {
  std::thread::id thread;
  bool in_scope = false;
  bool in_inference = false;
  bool with_grad = false;
};

}  // namespace direct_reply_test

template <>
struct weft::Codec<direct_reply_test::Witness> {
  static void encode(Writer& writer, const direct_reply_test::Witness&) { writer.scalar(1); }
  static direct_reply_test::Witness decode(Reader& reader) {
    (void)reader.scalar<int>();
    return {std::this_thread::get_id(), CallScope::current().runtime != nullptr,
            c10::InferenceMode::is_enabled(), at::GradMode::is_enabled()};
  }
  static void schema(SchemaBuilder& schema) { schema.text("witness"); }
};

namespace direct_reply_test {

// The thread for which testify() waits until it sleeps; 0: none.
std::atomic<pid_t> caller{0};
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] == 'S';
}
Witness testify() {
  if (const pid_t thread = caller.load(); thread != 0) {
    EXPECT_TRUE(eventually([&] { return sleeps(thread); }));
  }
  return {};
}
WEFT_REGISTER_FUNCTION(testify);
int64_t add(int64_t a, int64_t b) { return a + b; }
WEFT_REGISTER_FUNCTION(add);
// Calls back through the same connection, while the first caller reads.
int64_t add_there(std::string where, int64_t a, int64_t b) {
  return weft::rpc_sync(where, add, a, b);
}
WEFT_REGISTER_FUNCTION(add_there);
Promise<void>& released() {
  static auto* promise = new Promise<void>;
  return *promise;
}
void wait_until_released() { released().future().wait(); }
WEFT_REGISTER_FUNCTION(wait_until_released);

// A witness from a reply that this thread has read itself. On a busy machine, replies would come
// before their caller begins to read. And after a caller that was disturbed, others do not read.
Witness direct_witness() {
  Witness witness;
  caller.store(::gettid());
  EXPECT_TRUE(eventually([&] {
    witness = weft::rpc_sync("worker1", testify);
    return witness.thread == std::this_thread::get_id();
  })) << "no caller reads its reply itself";
  caller.store(0);
  return witness;
}
void expect_a_clean_thread(const Witness& witness) {
  EXPECT_FALSE(witness.in_scope);
  EXPECT_FALSE(witness.in_inference);
  EXPECT_TRUE(witness.with_grad);
}
bool handler_is_clean() {
  expect_a_clean_thread(direct_witness());
  return true;
}
WEFT_REGISTER_FUNCTION(handler_is_clean);

class DirectReplyTest : public ::testing::Test {
 protected:
  WorkerWorld world_{2, WorkerWorld::over(TransportKind::kSameHost)};
  WorkerScope scope_{world_[0]};
};

TEST_F(DirectReplyTest, ACallerReadsItsReplyAndDecodesItAsAServingThreadWould) {
  expect_a_clean_thread(direct_witness());
  const c10::InferenceMode inference;
  expect_a_clean_thread(direct_witness());
  EXPECT_TRUE(c10::InferenceMode::is_enabled());
  EXPECT_NE(CallScope::current().runtime, nullptr);
}

TEST_F(DirectReplyTest, WithoutGradToo) {
  const at::NoGradGuard no_grad;
  expect_a_clean_thread(direct_witness());
  EXPECT_FALSE(at::GradMode::is_enabled());
}

TEST_F(DirectReplyTest, ReadsOnAThreadOfTheExecutorToo) {
  const WorkerScope scope(world_[1]);
  // The handler runs on worker0 and calls "worker1".
  EXPECT_TRUE(weft::rpc_sync({"worker0", {.timeout = 60s}}, handler_is_clean));
}

TEST_F(DirectReplyTest, ACallerDecodesNoReplyOfAnotherCall) {
  for (int64_t i = 0; i < 200; ++i) {
    const weft::Future<Witness> other = weft::rpc_async("worker1", testify);
    EXPECT_EQ(weft::rpc_sync("worker1", add, i, int64_t{1}), i + 1);
    EXPECT_NE(other.wait().thread, std::this_thread::get_id());
  }
}

TEST_F(DirectReplyTest, CallsInBothDirectionsAndOfManyThreadsGetTheirOwnReplies) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const size_t from = static_cast<size_t>(thread % 2);
      const WorkerScope scope(world_[from]);
      const std::string to = WorkerWorld::name(1 - from), here = WorkerWorld::name(from);
      for (int64_t i = 0; i < 300; ++i) {
        EXPECT_EQ(weft::rpc_sync(to, add, i, int64_t{thread}), i + thread);
        EXPECT_EQ(weft::rpc_sync(to, add_there, here, i, int64_t{thread}), i + thread);
        EXPECT_EQ(weft::remote(to, add, i, int64_t{thread}).to_here(), i + thread);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DirectReplyTest, ADeadlineEndsTheWaitOfACallerThatReads) {
  (void)direct_witness();
  const absl::Status late = error_of([] {
    weft::rpc_sync({"worker1", {.timeout = 100ms}}, wait_until_released);
  });
  released().set_value();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
}

}  // namespace direct_reply_test
