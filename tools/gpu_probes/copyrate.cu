// Rates of copies: on the device, to and from the host, and between two processes.
#include "common.h"

using namespace probe;

namespace {

constexpr size_t kSizes[] = {size_t{1} << 20, size_t{16} << 20, size_t{64} << 20,
                             size_t{256} << 20};
constexpr size_t kSharedSizes[] = {16,
                                   size_t{4} << 10,
                                   size_t{64} << 10,
                                   size_t{256} << 10,
                                   size_t{1} << 20,
                                   size_t{4} << 20,
                                   size_t{16} << 20,
                                   size_t{64} << 20,
                                   size_t{256} << 20};
constexpr size_t kMost = size_t{256} << 20;
constexpr size_t kChunk = size_t{4} << 20;

int rounds_of(size_t size) { return size <= (16 << 20) ? 40 : 12; }

struct alignas(64) Flag {
  std::atomic<uint32_t> value{0};
};

struct State {
  Flag full;
  Flag empty;
  Flag chunks;
};

void say_rate(const std::string& name, size_t size, const std::vector<double>& times) {
  say("copyrate " + name + " " + size_text(size), size / median(times) / 1e3, "GB/s");
  say("copyrate " + name + " " + size_text(size) + ", time", median(times), "us");
}

void one_process(const std::string& name, void* to, const void* from, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  for (size_t size : kSizes) {
    std::vector<double> times;
    for (int i = 0; i < rounds_of(size) + 2; ++i) {
      const double begin = now_us();
      CHECK_CU(cudaMemcpyAsync(to, from, size, kind, stream));
      poll_until_done(stream);
      if (i >= 2) times.push_back(now_us() - begin);
    }
    say_rate(name, size, times);
  }
}

char* map_memfd(size_t size, int* descriptor) {
  *descriptor = static_cast<int>(syscall(SYS_memfd_create, "probe", MFD_CLOEXEC));
  must(*descriptor >= 0 && ftruncate(*descriptor, size) == 0, "memfd");
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *descriptor, 0);
  must(at != MAP_FAILED, "mmap");
  return static_cast<char*>(at);
}

enum class Way { kInAndOut, kOut, kHost, kHostChunks };
const char* const kWayNames[] = {
    "two processes, device copy in, flag, device copy out",
    "two processes, flag, device copy out",
    "two processes, to registered memfd, flag, from it",
    "two processes, through registered memfd in chunks of 4 MiB",
};

struct Ends {
  CUdeviceptr own;
  CUdeviceptr device;  // shared
  char* host;          // shared and registered
  cudaStream_t stream;
  std::vector<cudaEvent_t> events;
};

void send_tensor(Way way, size_t size, const Ends& ends, State* state, uint32_t turn) {
  if (way == Way::kInAndOut) {
    CHECK_CU(cuMemcpyDtoDAsync(ends.device, ends.own, size, ends.stream));
    poll_until_done(ends.stream);
  } else if (way == Way::kHost) {
    CHECK_CU(cuMemcpyDtoHAsync(ends.host, ends.own, size, ends.stream));
    poll_until_done(ends.stream);
  } else if (way == Way::kHostChunks) {
    state->chunks.value = 0;
    state->full.value = turn;
    size_t count = 0;
    for (size_t at = 0; at < size; at += kChunk, ++count) {
      const size_t part = std::min(kChunk, size - at);
      CHECK_CU(cuMemcpyDtoHAsync(ends.host + at, ends.own + at, part, ends.stream));
      CHECK_CU(cudaEventRecord(ends.events[count], ends.stream));
    }
    for (size_t i = 0; i < count; ++i) {
      cudaError_t done;
      while ((done = cudaEventQuery(ends.events[i])) == cudaErrorNotReady) {
      }
      CHECK_CU(done);
      state->chunks.value = i + 1;
    }
    return;
  }
  state->full.value = turn;
}

void receive_tensor(Way way, size_t size, const Ends& ends, State* state, uint32_t turn) {
  spin_until(state->full.value, turn);
  if (way == Way::kHostChunks) {
    uint32_t count = 0;
    for (size_t at = 0; at < size; at += kChunk) {
      ++count;
      while (state->chunks.value < count) {
      }
      const size_t part = std::min(kChunk, size - at);
      CHECK_CU(cuMemcpyHtoDAsync(ends.own + at, ends.host + at, part, ends.stream));
    }
  } else if (way == Way::kHost) {
    CHECK_CU(cuMemcpyHtoDAsync(ends.own, ends.host, size, ends.stream));
  } else {
    CHECK_CU(cuMemcpyDtoDAsync(ends.own, ends.device, size, ends.stream));
  }
  poll_until_done(ends.stream);
  state->empty.value = turn;
}

void two_processes(bool first, const Ends& ends, State* state) {
  uint32_t turn = 0;
  for (Way way : {Way::kInAndOut, Way::kOut, Way::kHost, Way::kHostChunks}) {
    for (size_t size : kSharedSizes) {
      std::vector<double> times;
      for (int i = 0; i < rounds_of(size) + 2; ++i) {
        ++turn;
        if (!first) {
          receive_tensor(way, size, ends, state, turn);
          continue;
        }
        const double begin = now_us();
        send_tensor(way, size, ends, state, turn);
        spin_until(state->empty.value, turn);
        if (i >= 2) times.push_back(now_us() - begin);
      }
      if (first) say_rate(kWayNames[static_cast<int>(way)], size, times);
      // The last word of the sender's memory is 7. The receiver's was 0.
      if (!first && way != Way::kOut) {
        must(read_word(ends.own + size - 4) == 7, "the data arrived");
        write_word(ends.own + size - 4, 0);
      }
    }
  }
}

}  // namespace

int main() {
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  State* state = shared_page<State>();
  int descriptor = -1;
  Ends ends;
  ends.host = map_memfd(kMost, &descriptor);
  const pid_t child = fork();
  make_context();
  CHECK_CU(cudaStreamCreateWithFlags(&ends.stream, cudaStreamNonBlocking));
  for (size_t i = 0; i < kMost / kChunk; ++i) {
    cudaEvent_t event;
    CHECK_CU(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ends.events.push_back(event);
  }
  CHECK_CU(cuMemAlloc(&ends.own, kMost));
  CHECK_CU(cuMemsetD32(ends.own, child == 0 ? 0 : 7, kMost / 4));
  if (child == 0) {
    // One process alone measures first. Then this one registers the memory too.
    ends.device = import_block(receive_descriptor(sockets[1]), kMost).at;
    CHECK_CU(cudaHostRegister(ends.host, kMost, cudaHostRegisterPortable));
    send_bytes(sockets[1], "r", 1);
    two_processes(false, ends, state);
    _exit(0);
  }
  const double begin = now_us();
  CHECK_CU(cudaHostRegister(ends.host, kMost, cudaHostRegisterPortable));
  say("copyrate cudaHostRegister of a populated memfd of 256 MiB", now_us() - begin, "us");
  void* other = nullptr;
  CHECK_CU(cudaMalloc(&other, kMost));
  void* own = reinterpret_cast<void*>(ends.own);
  one_process("device to device", other, own, cudaMemcpyDeviceToDevice, ends.stream);
  void* pinned = nullptr;
  const double pin_begin = now_us();
  CHECK_CU(cudaMallocHost(&pinned, kMost));
  say("copyrate cudaMallocHost of 256 MiB", now_us() - pin_begin, "us");
  std::memset(pinned, 1, kMost);
  void* pageable = malloc(kMost);
  std::memset(pageable, 1, kMost);
  one_process("pinned to device", other, pinned, cudaMemcpyHostToDevice, ends.stream);
  one_process("device to pinned", pinned, own, cudaMemcpyDeviceToHost, ends.stream);
  one_process("registered memfd to device", other, ends.host, cudaMemcpyHostToDevice, ends.stream);
  one_process("device to registered memfd", ends.host, own, cudaMemcpyDeviceToHost, ends.stream);
  one_process("pageable to device", other, pageable, cudaMemcpyHostToDevice, ends.stream);
  one_process("device to pageable", pageable, own, cudaMemcpyDeviceToHost, ends.stream);

  const Block block = create_block(kMost);
  CHECK_CU(cuMemsetD32(block.at, 7, kMost / 4));
  CHECK_CU(cuCtxSynchronize());
  ends.device = block.at;
  send_descriptor(sockets[0], export_block(block));
  char byte;
  receive_bytes(sockets[0], &byte, 1);
  two_processes(true, ends, state);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
