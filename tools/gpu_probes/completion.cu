// How long after a short copy a host thread learns of its end, by method.
#include <linux/futex.h>
#include <pthread.h>

#include "common.h"

using namespace probe;

namespace {

constexpr int kWarm = 50;

std::atomic<uint32_t> called{0};
std::atomic<int64_t> called_ns{0};

void CUDART_CB Called(void* turn) {
  called_ns.store(NowNs());
  called.store(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(turn)));
  syscall(SYS_futex, &called, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

template <typename Wait>
void Measure(const std::string& method, size_t size, int rounds, int pause_us, Wait wait) {
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
    const double cpu_begin = CpuUs();
    const double begin = NowUs();
    CHECK_CU(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream));
    const double end = wait(stream);
    if (i < kWarm) continue;
    times.push_back(end - begin);
    cpu += CpuUs() - cpu_begin;
  }
  const std::string name =
      "completion " + method + ", copy of " + Size(size) + (pause_us > 0 ? ", 1 ms apart" : "");
  Say(name, Median(times), "us");
  Say(name + ", 99th percentile", Quantile(times, 0.99), "us");
  Say(name + ", processor time", cpu / rounds, "us");
  CHECK_CU(cudaStreamDestroy(stream));
  CHECK_CU(cudaFree(from));
  CHECK_CU(cudaFree(to));
}

void All(size_t size, int rounds, int pause_us) {
  cudaEvent_t spinning, blocking;
  CHECK_CU(cudaEventCreateWithFlags(&spinning, cudaEventDisableTiming));
  CHECK_CU(cudaEventCreateWithFlags(&blocking, cudaEventDisableTiming | cudaEventBlockingSync));
  uint32_t* word = nullptr;
  CHECK_CU(cudaMallocHost(&word, 4));
  std::atomic<uint32_t>& flag = *new (word) std::atomic<uint32_t>(0);
  uint32_t turn = 0;

  Measure("submit only", size, rounds, pause_us, [](cudaStream_t stream) {
    const double end = NowUs();
    CHECK_CU(cudaStreamSynchronize(stream));
    return end;
  });
  Measure("cudaStreamSynchronize", size, rounds, pause_us, [](cudaStream_t stream) {
    CHECK_CU(cudaStreamSynchronize(stream));
    return NowUs();
  });
  Measure("event query in a loop", size, rounds, pause_us, [&](cudaStream_t stream) {
    CHECK_CU(cudaEventRecord(spinning, stream));
    cudaError_t state;
    while ((state = cudaEventQuery(spinning)) == cudaErrorNotReady) {
    }
    CHECK_CU(state);
    return NowUs();
  });
  Measure("event query, 20 us sleep between", size, rounds, pause_us, [&](cudaStream_t stream) {
    CHECK_CU(cudaEventRecord(spinning, stream));
    cudaError_t state;
    const timespec nap = {0, 20000};
    while ((state = cudaEventQuery(spinning)) == cudaErrorNotReady) nanosleep(&nap, nullptr);
    CHECK_CU(state);
    return NowUs();
  });
  Measure("blocking-sync event", size, rounds, pause_us, [&](cudaStream_t stream) {
    CHECK_CU(cudaEventRecord(blocking, stream));
    CHECK_CU(cudaEventSynchronize(blocking));
    return NowUs();
  });
  Measure("cudaLaunchHostFunc, in the callback", size, rounds, pause_us, [&](cudaStream_t stream) {
    ++turn;
    CHECK_CU(cudaLaunchHostFunc(stream, Called, reinterpret_cast<void*>(uintptr_t{turn})));
    SpinUntil(called, turn);
    return called_ns.load() / 1e3;
  });
  Measure("cudaLaunchHostFunc, a sleeping thread woken", size, rounds, pause_us,
          [&](cudaStream_t stream) {
            const uint32_t before = turn++;
            CHECK_CU(cudaLaunchHostFunc(stream, Called, reinterpret_cast<void*>(uintptr_t{turn})));
            while (called.load() != turn) {
              syscall(SYS_futex, &called, FUTEX_WAIT, before, nullptr, nullptr, 0);
            }
            return NowUs();
          });
  uint32_t written = 0;
  Measure("cuStreamWriteValue32 polled", size, rounds, pause_us, [&](cudaStream_t stream) {
    ++written;
    CHECK_CU(cuStreamWriteValue32(stream, reinterpret_cast<CUdeviceptr>(word), written, 0));
    SpinUntil(flag, written);
    return NowUs();
  });
}

}  // namespace

int main() {
  Begin();
  All(16, 2000, 0);
  All(1 << 20, 2000, 0);
  All(16, 400, 1000);
  return 0;
}
