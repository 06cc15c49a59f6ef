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

void wait_for(const std::atomic<uint32_t>& count, uint32_t least) {
  const int64_t begin = now_ns();
  while (count.load(std::memory_order_acquire) < least) {
    must(now_ns() - begin < 10'000'000'000, "the other side came in 10 s");
  }
}

// Each side counts slots over all sizes. A slot is free once it was read kSlots slots ago.
void copy_pieces(bool sender, CUdeviceptr own, CUdeviceptr ring, cudaStream_t stream,
                 State* state) {
  uint32_t slot = 0;
  uint32_t tensor = 0;
  for (size_t slot_bytes : kSlotBytes) {
    for (size_t size : kSizes) {
      std::vector<double> times;
      for (int round = 0; round < kRounds; ++round) {
        ++tensor;
        const double begin = now_us();
        for (size_t at = 0; at < size; at += slot_bytes) {
          ++slot;
          const CUdeviceptr place = ring + slot % kSlots * slot_bytes;
          if (sender) {
            if (slot > kSlots) wait_for(state->read.value, slot - kSlots);
            CHECK_CU(cuMemcpyDtoDAsync(place, own + at, slot_bytes, stream));
          } else {
            wait_for(state->written.value, slot);
            CHECK_CU(cuMemcpyDtoDAsync(own + at, place, slot_bytes, stream));
          }
          poll_until_done(stream);
          (sender ? state->written : state->read).value = slot;
        }
        if (!sender) {
          state->received.value = tensor;
          continue;
        }
        wait_for(state->received.value, tensor);
        if (round >= 2) times.push_back(now_us() - begin);
      }
      if (!sender) continue;
      const std::string name = "beside two processes, ring of 4 slots of " + size_text(slot_bytes) +
                               ", " + size_text(size);
      say(name, size / median(times) / 1e3, "GB/s");
      say(name + ", time", median(times), "us");
    }
  }
}

// Fills memory again and again until it is told to stop.
void run_load(State* state) {
  constexpr size_t kFill = size_t{1} << 30;
  CUdeviceptr memory = 0;
  CHECK_CU(cuMemAlloc(&memory, kFill));
  cudaStream_t stream;
  CHECK_CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  while (state->stop.value == 0) {
    for (int i = 0; i < 20; ++i) CHECK_CU(cuMemsetD32Async(memory, i, kFill / 4, stream));
    state->loaded.value = 1;
    poll_until_done(stream);
  }
  CHECK_CU(cuMemFree(memory));
}

struct Memory {
  CUdeviceptr own;
  CUdeviceptr ring;
  char* host;
};

// Prints the time of one copy, half a millisecond after the one before.
template <typename Copy>
void time_copies(const std::string& name, cudaStream_t stream, Copy copy) {
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    usleep(500);
    const double begin = now_us();
    CHECK_CU(copy());
    poll_until_done(stream);
    times.push_back(now_us() - begin);
  }
  say("beside " + name, median(times), "us");
  say("beside " + name + ", 99th percentile", quantile(times, 0.99), "us");
}

void small_copies(const Memory& memory, cudaStream_t stream, const std::string& name) {
  time_copies("copy of 16 B, " + name, stream,
              [&] { return cuMemcpyDtoDAsync(memory.ring, memory.own, 16, stream); });
  for (size_t size : {size_t{16}, size_t{64} << 10, size_t{1} << 20}) {
    time_copies("device-to-host copy of " + size_text(size) + ", " + name, stream,
                [&] { return cuMemcpyDtoHAsync(memory.host, memory.own, size, stream); });
    time_copies("host-to-device copy of " + size_text(size) + ", " + name, stream,
                [&] { return cuMemcpyHtoDAsync(memory.own, memory.host, size, stream); });
  }
}

}  // namespace

int main() {
  State* state = shared_page<State>();
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  make_context();
  CUdeviceptr own = 0;
  CHECK_CU(cuMemAlloc(&own, kMost));
  cudaStream_t stream;
  CHECK_CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (child == 0) {
    const Block ring = import_block(receive_descriptor(sockets[1]), kMost);
    copy_pieces(false, own, ring.at, stream, state);
    char byte;
    receive_bytes(sockets[1], &byte, 1);
    run_load(state);
    _exit(0);
  }
  const Block ring = create_block(kMost);
  send_descriptor(sockets[0], export_block(ring));
  copy_pieces(true, own, ring.at, stream, state);
  Memory memory = {own, ring.at, nullptr};
  CHECK_CU(cudaMallocHost(&memory.host, 1 << 20));
  small_copies(memory, stream, "idle GPU");
  send_bytes(sockets[0], "l", 1);
  wait_for(state->loaded.value, 1);
  small_copies(memory, stream, "another process fills memory");
  state->stop.value = 1;
  waitpid(child, nullptr, 0);
  state->stop.value = 0;
  state->loaded.value = 0;
  std::thread load([&] {
    CHECK_CU(cudaSetDevice(0));
    run_load(state);
  });
  wait_for(state->loaded.value, 1);
  small_copies(memory, stream, "this process fills memory");
  state->stop.value = 1;
  load.join();
  return 0;
}
