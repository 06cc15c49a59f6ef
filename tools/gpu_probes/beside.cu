// A small copy beside a busy GPU, and copies between two processes in pieces over a ring of slots.
#include <sys/prctl.h>
#include <thread>

#include "common.h"

using namespace probe;

namespace {

constexpr size_t kMost = size_t{256} << 20;
constexpr uint32_t kSlots = 4;
constexpr size_t kSlotBytes[] = {size_t{4} << 20, size_t{16} << 20, size_t{64} << 20};
constexpr size_t kSizes[] = {size_t{64} << 20, size_t{256} << 20};
constexpr int kRounds = 10;

struct alignas(64) Count {
  std::atomic<uint32_t> value{0};
};

struct State {
  Count written;
  Count read;
  Count received;
  Count loaded;
  Count stop;
};

void WaitFor(const std::atomic<uint32_t>& count, uint32_t least) {
  const int64_t begin = NowNs();
  while (count.load(std::memory_order_acquire) < least) {
    Must(NowNs() - begin < 10'000'000'000, "the other side came in 10 s");
  }
}

// Each side counts slots over all sizes. A slot is free once it was read kSlots slots ago.
void Pieces(bool sender, CUdeviceptr own, CUdeviceptr ring, cudaStream_t stream, State* state) {
  uint32_t slot = 0;
  uint32_t tensor = 0;
  for (size_t slot_bytes : kSlotBytes) {
    for (size_t size : kSizes) {
      std::vector<double> times;
      for (int round = 0; round < kRounds; ++round) {
        ++tensor;
        const double begin = NowUs();
        for (size_t at = 0; at < size; at += slot_bytes) {
          ++slot;
          const CUdeviceptr place = ring + slot % kSlots * slot_bytes;
          if (sender) {
            if (slot > kSlots) WaitFor(state->read.value, slot - kSlots);
            CHECK_CU(cuMemcpyDtoDAsync(place, own + at, slot_bytes, stream));
          } else {
            WaitFor(state->written.value, slot);
            CHECK_CU(cuMemcpyDtoDAsync(own + at, place, slot_bytes, stream));
          }
          Poll(stream);
          (sender ? state->written : state->read).value = slot;
        }
        if (!sender) {
          state->received.value = tensor;
          continue;
        }
        WaitFor(state->received.value, tensor);
        if (round >= 2) times.push_back(NowUs() - begin);
      }
      if (!sender) continue;
      const std::string name =
          "beside two processes, ring of 4 slots of " + Size(slot_bytes) + ", " + Size(size);
      Say(name, size / Median(times) / 1e3, "GB/s");
      Say(name + ", time", Median(times), "us");
    }
  }
}

// Fills memory again and again until it is told to stop.
void Load(State* state) {
  constexpr size_t kFill = size_t{1} << 30;
  CUdeviceptr memory = 0;
  CHECK_CU(cuMemAlloc(&memory, kFill));
  cudaStream_t stream;
  CHECK_CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  while (state->stop.value == 0) {
    for (int i = 0; i < 20; ++i) CHECK_CU(cuMemsetD32Async(memory, i, kFill / 4, stream));
    state->loaded.value = 1;
    Poll(stream);
  }
  CHECK_CU(cuMemFree(memory));
}

void SmallCopies(CUdeviceptr own, CUdeviceptr ring, cudaStream_t stream, const std::string& name) {
  std::vector<double> times;
  for (int i = 0; i < 300; ++i) {
    usleep(500);
    const double begin = NowUs();
    CHECK_CU(cuMemcpyDtoDAsync(ring, own, 16, stream));
    Poll(stream);
    times.push_back(NowUs() - begin);
  }
  Say("beside copy of 16 B, " + name, Median(times), "us");
  Say("beside copy of 16 B, " + name + ", 99th percentile", Quantile(times, 0.99), "us");
}

}  // namespace

int main() {
  State* state = Shared<State>();
  int sockets[2];
  Must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  Begin();
  CUdeviceptr own = 0;
  CHECK_CU(cuMemAlloc(&own, kMost));
  cudaStream_t stream;
  CHECK_CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (child == 0) {
    const Block ring = Import(ReceiveDescriptor(sockets[1]), kMost);
    Pieces(false, own, ring.at, stream, state);
    char byte;
    ReceiveBytes(sockets[1], &byte, 1);
    Load(state);
    _exit(0);
  }
  const Block ring = Create(kMost);
  SendDescriptor(sockets[0], Export(ring));
  Pieces(true, own, ring.at, stream, state);
  SmallCopies(own, ring.at, stream, "idle GPU");
  SendBytes(sockets[0], "l", 1);
  WaitFor(state->loaded.value, 1);
  SmallCopies(own, ring.at, stream, "another process fills memory");
  state->stop.value = 1;
  waitpid(child, nullptr, 0);
  state->stop.value = 0;
  state->loaded.value = 0;
  std::thread load([&] {
    CHECK_CU(cudaSetDevice(0));
    Load(state);
  });
  WaitFor(state->loaded.value, 1);
  SmallCopies(own, ring.at, stream, "this process fills memory");
  state->stop.value = 1;
  load.join();
  return 0;
}
