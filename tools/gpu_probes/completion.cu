// How long after a short copy a host thread learns of its end, by method.
#include <linux/futex.h>
#include <pthread.h>

#include "common.h"

using namespace probe;

namespace {

constexpr int kWarm = 50;

std::atomic<uint32_t> called{0};
std::atomic<int64_t> called_ns{0};

void CUDART_CB on_called(void* turn) {
  called_ns.store(now_ns());
  called.store(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(turn)));
  syscall(SYS_futex, &called, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

template <typename Wait>
void measure(const std::string& method, size_t size, int rounds, int pause_us, Wait wait) {
  char* from = nullptr;
  char* to = nullptr;
  CHECK_CU(cudaMalloc(&from, size));
  CHECK_CU(cudaMalloc(&to, size));
  cudaStream_t stream;
  CHECK_CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<double> times;
  double cpu = 0;
  for (int i = 0; i < rounds + kWarm; ++i) {
    if (pause_us > 0) usleep(pause_us);
    const double cpu_begin = cpu_us();
    const double begin = now_us();
    CHECK_CU(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream));
    const double end = wait(stream);
    if (i < kWarm) continue;
    times.push_back(end - begin);
    cpu += cpu_us() - cpu_begin;
  }
  const std::string name = "completion " + method + ", copy of " + size_text(size) +
                           (pause_us > 0 ? ", 1 ms apart" : "");
  say(name, median(times), "us");
  say(name + ", 99th percentile", quantile(times, 0.99), "us");
  say(name + ", processor time", cpu / rounds, "us");
  CHECK_CU(cudaStreamDestroy(stream));
  CHECK_CU(cudaFree(from));
  CHECK_CU(cudaFree(to));
}

void measure_all(size_t size, int rounds, int pause_us) {
  cudaEvent_t spinning, blocking;
  CHECK_CU(cudaEventCreateWithFlags(&spinning, cudaEventDisableTiming));
  CHECK_CU(cudaEventCreateWithFlags(&blocking, cudaEventDisableTiming | cudaEventBlockingSync));
  uint32_t* word = nullptr;
  CHECK_CU(cudaMallocHost(&word, 4));
  std::atomic<uint32_t>& flag = *new (word) std::atomic<uint32_t>(0);
  uint32_t turn = 0;

  measure("submit only", size, rounds, pause_us, [](cudaStream_t stream) {
    const double end = now_us();
    CHECK_CU(cudaStreamSynchronize(stream));
    return end;
  });
  measure("cudaStreamSynchronize", size, rounds, pause_us, [](cudaStream_t stream) {
    CHECK_CU(cudaStreamSynchronize(stream));
    return now_us();
  });
  measure("event query in a loop", size, rounds, pause_us, [&](cudaStream_t stream) {
    CHECK_CU(cudaEventRecord(spinning, stream));
    cudaError_t state;
    while ((state = cudaEventQuery(spinning)) == cudaErrorNotReady) {
    }
    CHECK_CU(state);
    return now_us();
  });
  measure("event query, 20 us sleep between", size, rounds, pause_us, [&](cudaStream_t stream) {
    CHECK_CU(cudaEventRecord(spinning, stream));
    cudaError_t state;
    const timespec nap = {0, 20000};
    while ((state = cudaEventQuery(spinning)) == cudaErrorNotReady) nanosleep(&nap, nullptr);
    CHECK_CU(state);
    return now_us();
  });
  measure("blocking-sync event", size, rounds, pause_us, [&](cudaStream_t stream) {
    CHECK_CU(cudaEventRecord(blocking, stream));
    CHECK_CU(cudaEventSynchronize(blocking));
    return now_us();
  });
  measure("cudaLaunchHostFunc, in the callback", size, rounds, pause_us, [&](cudaStream_t stream) {
    ++turn;
    CHECK_CU(cudaLaunchHostFunc(stream, on_called, reinterpret_cast<void*>(uintptr_t{turn})));
    spin_until(called, turn);
    return called_ns.load() / 1e3;
  });
  measure(
      "cudaLaunchHostFunc, a sleeping thread woken", size, rounds, pause_us,
      [&](cudaStream_t stream) {
        const uint32_t before = turn++;
        CHECK_CU(cudaLaunchHostFunc(stream, on_called, reinterpret_cast<void*>(uintptr_t{turn})));
        while (called.load() != turn) {
          syscall(SYS_futex, &called, FUTEX_WAIT, before, nullptr, nullptr, 0);
        }
        return now_us();
      });
  uint32_t written = 0;
  measure("cuStreamWriteValue32 polled", size, rounds, pause_us, [&](cudaStream_t stream) {
    ++written;
    CHECK_CU(cuStreamWriteValue32(stream, reinterpret_cast<CUdeviceptr>(word), written, 0));
    spin_until(flag, written);
    return now_us();
  });
}

}  // namespace

int main() {
  make_context();
  measure_all(16, 2000, 0);
  measure_all(1 << 20, 2000, 0);
  measure_all(16, 400, 1000);
  return 0;
}
