// Kills one of two processes that share device memory, in the middle of its copies into it.
// Usage: kill vmm | kill ipc
#include <sys/prctl.h>

#include "common.h"

using namespace probe;

namespace {

constexpr size_t kSize = size_t{64} << 20;
constexpr int64_t kWatchNs = 700'000'000;  // how long the survivor watches the memory after the end

struct State {
  std::atomic<uint32_t> victim_busy{0};
  std::atomic<uint32_t> survivor_busy{0};
  std::atomic<int64_t> killed_ns{0};
  std::atomic<int64_t> closed_ns{0};  // the victim's socket reported the end
  std::atomic<int64_t> gone_ns{0};    // the pidfd was ready
};

enum class Mode { kDevice, kHost, kKernel };
const char* const kModeNames[] = {"device copies", "copies from the host", "a kernel of 3 s"};

__global__ void count_up(volatile uint32_t* words, size_t count, unsigned long long limit_ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  uint32_t value = 0;
  do {
    ++value;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
      words[i] = value;
    }
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < limit_ns);
}

__global__ void double_words(uint32_t* words, size_t count) {
  const size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  if (i < count) words[i] *= 2;
}

// Writes into the memory until it is killed.
void work_until_killed(CUdeviceptr memory, Mode mode, State* state) {
  cudaStream_t stream;
  CHECK_CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (mode == Mode::kKernel) {
    CHECK_CU(cuMemsetD32(memory, 0, kSize / 4));
    CHECK_CU(cuCtxSynchronize());
    count_up<<<64, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(memory), kSize / 4, 3'000'000'000);
    CHECK_CU(cudaGetLastError());
    state->victim_busy = 1;
    for (;;) pause();
  }
  CUdeviceptr source = 0;
  CHECK_CU(cuMemAlloc(&source, kSize));
  uint32_t* host[2];
  for (uint32_t i = 0; i < 2; ++i) {
    CHECK_CU(cudaMallocHost(&host[i], kSize));
    std::fill(host[i], host[i] + kSize / 4, i + 1);
  }
  for (uint32_t turn = 1;; ++turn) {
    // The queue is full soon. From then on hundreds of copies wait at the time of the kill.
    if (mode == Mode::kDevice) {
      CHECK_CU(cuMemsetD32Async(source, turn, kSize / 4, stream));
      CHECK_CU(cuMemcpyDtoDAsync(memory, source, kSize, stream));
    } else {
      CHECK_CU(cuMemcpyHtoDAsync(memory, host[turn % 2], kSize, stream));
    }
    state->victim_busy = 1;
  }
}

void watch(CUdeviceptr memory, const std::string& name, State* state) {
  cudaStream_t stream;
  CHECK_CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint32_t* word = nullptr;
  CHECK_CU(cudaMallocHost(&word, 4));
  // Changes: the begin of the read that saw the old value, and of the one that saw the new value.
  std::vector<std::pair<int64_t, int64_t>> changes;
  double slowest_us = 0;
  int64_t previous_begin = 0;
  uint32_t previous = 0;
  std::string error;
  for (;;) {
    const int64_t begin = now_ns();
    const int64_t gone = state->gone_ns.load();
    if (gone != 0 && begin - gone > kWatchNs) break;
    CUresult result = cuMemcpyDtoHAsync(word, memory + kSize / 2, 4, stream);
    if (result == CUDA_SUCCESS) result = cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS) {
      error = text_of(result);
      break;
    }
    slowest_us = std::max(slowest_us, (now_ns() - begin) / 1e3);
    if (*word != previous && previous_begin != 0) changes.emplace_back(previous_begin, begin);
    previous = *word;
    previous_begin = begin;
    if (changes.size() >= 3) state->survivor_busy = 1;
  }
  // A change is late if both reads began after the moment.
  const auto late = [&](int64_t moment) {
    return std::count_if(changes.begin(), changes.end(),
                         [&](const auto& change) { return change.first > moment; });
  };
  say(name + ", changes seen by the survivor", changes.size(), "");
  say(name + ", changes after the kill", late(state->killed_ns), "");
  say(name + ", last change after the kill", (changes.back().second - state->killed_ns) / 1e6,
      "ms");
  say(name + ", kill to the end of the socket", (state->closed_ns - state->killed_ns) / 1e6, "ms");
  say(name + ", changes after the end of the socket", late(state->closed_ns), "");
  say(name + ", kill to pidfd ready", (state->gone_ns - state->killed_ns) / 1e6, "ms");
  say(name + ", changes after the pidfd was ready", late(state->gone_ns), "");
  say(name + ", survivor's slowest read of a word", slowest_us / 1e3, "ms");
  if (!error.empty()) say(name + ", survivor's reads failed", error);

  std::vector<uint32_t> all(kSize / 4);
  std::string text = "read " + text_of(cuMemcpyDtoH(all.data(), memory, kSize));
  size_t other = 0;
  for (uint32_t value : all) other += value != all[0] ? 1 : 0;
  double_words<<<kSize / 4 / 256, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(memory), kSize / 4);
  text += ", kernel " + text_of(cudaStreamSynchronize(stream));
  uint32_t doubled = 0;
  CUresult result = cuMemcpyDtoH(&doubled, memory, 4);
  text += ", its result " + std::string(doubled == all[0] * 2 ? "right" : "wrong");
  CUdeviceptr fresh = 0;
  text += ", new memory " + text_of(cuMemAlloc(&fresh, kSize));
  result = cuMemcpyDtoD(fresh, memory, kSize);
  text += ", copy out of it " + text_of(result);
  text += ", context " + text_of(cuCtxSynchronize());
  say(name + ", survivor", text);
  say(name + ", words unlike the first in the buffer", other, "words of 16777216");
}

void run_child(bool vmm, bool exporter, bool victim, Mode mode, int socket, const std::string& name,
               State* state) {
  make_context();
  CUdeviceptr memory = 0;
  if (vmm) {
    Block block;
    if (exporter) {
      block = create_block(kSize);
      const int descriptor = export_block(block);
      send_descriptor(socket, descriptor);
      close(descriptor);
    } else {
      block = import_block(receive_descriptor(socket), kSize);
    }
    memory = block.at;
  } else {
    cudaIpcMemHandle_t handle;
    void* at = nullptr;
    if (exporter) {
      CHECK_CU(cudaMalloc(&at, kSize));
      CHECK_CU(cudaIpcGetMemHandle(&handle, at));
      send_bytes(socket, &handle, sizeof(handle));
    } else {
      receive_bytes(socket, &handle, sizeof(handle));
      CHECK_CU(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
    }
    memory = CUdeviceptr(at);
  }
  if (victim) work_until_killed(memory, mode, state);
  spin_until(state->victim_busy, 1);
  watch(memory, name, state);
  _exit(0);
}

void run_case(bool vmm, bool exporter_dies, Mode mode) {
  const std::string name = std::string("kill ") + (vmm ? "vmm " : "ipc ") +
                           (exporter_dies ? "exporter" : "importer") + " in " +
                           kModeNames[static_cast<int>(mode)];
  State* state = shared_page<State>();
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  int alive[2];  // the parent's end and the victim's
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, alive) == 0, "socketpair");
  pid_t pids[2];  // the exporter, the importer
  for (int i = 0; i < 2; ++i) {
    pids[i] = fork();
    if (pids[i] != 0) continue;
    close(sockets[1 - i]);
    close(alive[0]);
    if ((i == 0) != exporter_dies) close(alive[1]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_child(vmm, i == 0, (i == 0) == exporter_dies, mode, sockets[i], name, state);
  }
  close(sockets[0]);
  close(sockets[1]);
  close(alive[1]);
  const pid_t victim = pids[exporter_dies ? 0 : 1];
  const pid_t survivor = pids[exporter_dies ? 1 : 0];
  const int64_t begin = now_ns();
  while (state->survivor_busy == 0 && now_ns() - begin < 6'000'000'000) usleep(100);
  if (state->survivor_busy == 0) say(name + ", the survivor", "saw no 3 changes in 6 s");
  usleep(100'000);
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, victim, 0));
  must(pidfd >= 0, "pidfd_open");
  state->killed_ns = now_ns();
  kill(victim, SIGKILL);
  pollfd ends[] = {{pidfd, POLLIN, 0}, {alive[0], POLLIN, 0}};
  while (state->gone_ns == 0) {
    must(poll(ends, 2, 15000) > 0, "the pidfd became ready");
    const int64_t now = now_ns();
    if (ends[1].fd >= 0 && ends[1].revents != 0) {
      state->closed_ns = now;
      ends[1].fd = -1;
    }
    if (ends[0].revents == 0) continue;
    if (state->closed_ns == 0) state->closed_ns = now;
    state->gone_ns = now;
  }
  waitpid(victim, nullptr, 0);
  close(pidfd);
  close(alive[0]);
  int status = -1;
  for (int i = 0; i < 100 && waitpid(survivor, &status, WNOHANG) == 0; ++i) usleep(100'000);
  if (status == -1) kill(survivor, SIGKILL);
  if (status != 0) say(name + ", the survivor", "ended with status " + std::to_string(status));
}

}  // namespace

int main(int argc, char** argv) {
  const bool vmm = argc > 1 && std::string(argv[1]) == "vmm";
  for (int round = 0; round < 3; ++round)
    for (bool exporter_dies : {true, false}) {
      for (Mode mode : {Mode::kDevice, Mode::kHost, Mode::kKernel})
        run_case(vmm, exporter_dies, mode);
    }
  return 0;
}
