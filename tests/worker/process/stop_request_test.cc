#include "weft/worker/stop_request.h"

#include <atomic>
#include <cstdlib>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace weft {
namespace {

// Each test runs in a process of its own, because a request cannot be taken back.
void exit_with(bool good) { std::_Exit(good ? 0 : 1); }

TEST(StopRequestDeathTest, SigtermEndsAProcessThatDoesNotAsk) {
  EXPECT_EXIT(
      {
        raise(SIGTERM);
        exit_with(true);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequestDeathTest, SigtermAsksOnceOrTwice) {
  EXPECT_EXIT(
      {
        if (stop_requested()) exit_with(false);
        raise(SIGTERM);
        raise(SIGTERM);
        exit_with(stop_requested() && stop_requested());
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(StopRequestDeathTest, TheFutureIsCompleteAfterTheSignal) {
  EXPECT_EXIT(
      {
        const Future<void> before = stop_request();
        if (before.done()) exit_with(false);
        raise(SIGTERM);
        before.wait();
        stop_request().wait();
        exit_with(true);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(StopRequestDeathTest, ARequestBeforeTheFirstFutureIsNotLost) {
  EXPECT_EXIT(
      {
        expect_stop_requests();
        raise(SIGTERM);
        stop_request().wait();
        exit_with(true);
      },
      ::testing::ExitedWithCode(0), "");
}

// The sum of the gradients of a fresh LSTM, after several passes over the same batch.
double train_lstm(int times) {
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(128, 256));
  const at::Tensor input = torch::randn({20, 8, 128}, at::requires_grad());
  for (int i = 0; i < times; ++i) std::get<0>(lstm->forward(input)).square().mean().backward();
  return input.grad().sum().item<double>();
}

// With AVX-512, oneDNN's products keep data below the stack pointer. Without a stack of its own the
// handler corrupts the heap: 10 of 10 runs ended with SIGABRT.
TEST(StopRequestDeathTest, SigtermDuringMatrixProductsChangesNoResult) {
  EXPECT_EXIT(
      {
        at::set_num_threads(1);  // all of the product runs on this thread, which gets the signals
        constexpr int kTimes = 40;
        const double undisturbed = train_lstm(kTimes);
        expect_stop_requests();
        std::atomic<bool> done{false};
        std::thread asking([&] {
          while (!done) kill(getpid(), SIGTERM);
        });
        const double disturbed = train_lstm(kTimes);
        done = true;
        asking.join();
        exit_with(disturbed == undisturbed);
      },
      ::testing::ExitedWithCode(0), "");
}

// What the test above shows only on processors with AVX-512.
TEST(StopRequestDeathTest, TheHandlerRunsOnAStackOfItsOwn) {
  EXPECT_EXIT(
      {
        expect_stop_requests();
        struct sigaction action = {};
        sigaction(SIGTERM, nullptr, &action);
        stack_t stack = {};
        sigaltstack(nullptr, &stack);
        exit_with((action.sa_flags & SA_ONSTACK) != 0 && (stack.ss_flags & SS_DISABLE) == 0 &&
                  static_cast<long>(stack.ss_size) >= sysconf(_SC_SIGSTKSZ));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(StopRequestDeathTest, AStackForSignalsThatIsThereAlreadyIsKept) {
  EXPECT_EXIT(
      {
        static char memory[128 << 10];
        stack_t own = {};
        own.ss_sp = memory;
        own.ss_size = sizeof(memory);
        sigaltstack(&own, nullptr);
        expect_stop_requests();
        stack_t present = {};
        sigaltstack(nullptr, &present);
        exit_with(present.ss_sp == memory);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft
