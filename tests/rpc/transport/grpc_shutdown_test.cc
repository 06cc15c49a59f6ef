// A transport that stops while gRPC accepts a stream.
//
// gRPC 1.51 loses a request for a further stream that is made beside the server's shutdown: it asks
// whether the server shuts down, and then queues the request. Nothing ends a request that it queues
// after the shutdown. This program has a function in the place of the one that queues it. It takes
// long, so that the race is certain.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <thread>

#include <gtest/gtest.h>

#include "weft/base/clock.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/tests/rpc/transport/recorder.h"
#include "weft/tests/rpc/transport/transport_ends.h"
#include "weft/tests/support/eventually.h"

// grpc_core::LockedMultiProducerSingleConsumerQueue::Push(Node*)
#define WEFT_GRPC_PUSH                                           \
  "_ZN9grpc_core38LockedMultiProducerSingleConsumerQueue4PushEP" \
  "NS_32MultiProducerSingleConsumerQueue4NodeE"

namespace weft {
namespace {

std::atomic<bool> is_slow{false};
std::atomic<int> slow_pushes{0};

}  // namespace

extern "C" [[gnu::visibility("default")]] bool weft_push(void* queue,
                                                         void* node) __asm__(WEFT_GRPC_PUSH);
bool weft_push(void* queue, void* node) {
  using Push = bool (*)(void*, void*);
  static const auto push = reinterpret_cast<Push>(::dlsym(RTLD_NEXT, WEFT_GRPC_PUSH));
  if (push == nullptr) std::abort();  // another version of gRPC
  if (is_slow.load()) {
    ++slow_pushes;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return push(queue, node);
}

namespace {

using testing::End;
using testing::eventually;

// Without the order that GrpcTransport::stop() keeps, the first rounds hang.
TEST(GrpcShutdownTest, ARequestForAFurtherStreamIsNotLost) {
  SystemClock clock;
  for (int round = 0; round < 5; ++round) {
    End near, far;
    for (End* end : {&near, &far}) {
      const uint32_t index = end == &near ? 0 : 1;
      end->identity = {"group", "w" + std::to_string(index), {index, 1}};
      end->transport = std::make_unique<GrpcTransport>(clock);
      ASSERT_TRUE(end->transport->start(end->identity, &end->sink).ok());
    }
    slow_pushes = 0;
    is_slow = true;
    const auto dialled = testing::dial(far, near.transport->address(), near.identity);
    ASSERT_TRUE(eventually([] { return slow_pushes.load() > 0; }));
    near.transport->stop();
    is_slow = false;
    far.transport->stop();
  }
}

}  // namespace
}  // namespace weft
