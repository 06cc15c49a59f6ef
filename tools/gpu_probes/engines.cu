// Which operations pay when two processes take turns on one GPU.
//
// Both processes do the same operation in turn, wait for it, and pass the turn on through a flag in
// shared host memory. A turn beside a silent process is the same without the other's operations.
#include <functional>
#include <sys/prctl.h>

#include "common.h"

using namespace probe;

namespace {

constexpr size_t kMost = size_t{256} << 20;
constexpr int kWarm = 20;

struct alignas(64) Turn {
  std::atomic<uint32_t> value{0};
};

__global__ void touch(uint32_t* word) { *word += 1; }

// A copy that asks for a copy engine.
void copy_batch(CUdeviceptr to, CUdeviceptr from, size_t size, cudaStream_t stream) {
  void* target = reinterpret_cast<void*>(to);
  void* source = reinterpret_cast<void*>(from);
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t index = 0;
  CHECK_CU(cudaMemcpyBatchAsync(&target, &source, &size, 1, &attributes, &index, 1, stream));
}

void Copy2D(CUdeviceptr to, CUdeviceptr from, size_t size, cudaStream_t stream) {
  CHECK_CU(cudaMemcpy2DAsync(reinterpret_cast<void*>(to), 1 << 20, reinterpret_cast<void*>(from),
                             1 << 20, size / 2, 2, cudaMemcpyDefault, stream));
}

struct Memory {
  CUdeviceptr own = 0;
  CUdeviceptr shared = 0;
  CUdeviceptr host = 0;  // pinned
  cudaStream_t stream = nullptr;
};

using Operation = std::function<void()>;

struct Named {
  std::string name;
  Operation call;
};

std::vector<Named> make_operations(const Memory& m) {
  const auto dtod = [&m](size_t size) {
    return [&m, size] { CHECK_CU(cuMemcpyDtoDAsync(m.shared, m.own, size, m.stream)); };
  };
  const auto dtod_batch = [&m](size_t size) {
    return [&m, size] { copy_batch(m.shared, m.own, size, m.stream); };
  };
  const auto dtoh = [&m](size_t size) {
    return [&m, size] {
      CHECK_CU(cuMemcpyDtoHAsync(reinterpret_cast<void*>(m.host), m.own, size, m.stream));
    };
  };
  const auto htod = [&m](size_t size) {
    return [&m, size] {
      CHECK_CU(cuMemcpyHtoDAsync(m.own, reinterpret_cast<void*>(m.host), size, m.stream));
    };
  };
  const auto htod_batch = [&m](size_t size) {
    return [&m, size] { copy_batch(m.own, m.host, size, m.stream); };
  };
  const auto word = [&m] { return reinterpret_cast<uint32_t*>(m.own); };
  std::vector<Named> all = {
      {"kernel", [&m, word] { touch<<<1, 1, 0, m.stream>>>(word()); }},
      {"memset of 16 B", [&m] { CHECK_CU(cuMemsetD32Async(m.own, 1, 4, m.stream)); }},
      {"cuStreamWriteValue32",
       [&m] { CHECK_CU(cuStreamWriteValue32(m.stream, m.own + 64, 1, 0)); }},
      {"2D device copy of 16 B", [&m] { Copy2D(m.shared, m.own, 16, m.stream); }},
      {"2D host-to-device copy of 16 B", [&m] { Copy2D(m.own, m.host, 16, m.stream); }},
  };
  for (size_t size : {size_t{16}, size_t{64} << 10, size_t{1} << 20, size_t{16} << 20}) {
    all.push_back({"device copy of " + size_text(size), dtod(size)});
    all.push_back({"device copy by copy engine of " + size_text(size), dtod_batch(size)});
    all.push_back({"device-to-host copy of " + size_text(size), dtoh(size)});
    all.push_back({"host-to-device copy of " + size_text(size), htod(size)});
    all.push_back({"host-to-device batch copy of " + size_text(size), htod_batch(size)});
  }
  for (size_t size : {size_t{4} << 10, size_t{32} << 10, size_t{128} << 10}) {
    all.push_back({"host-to-device copy of " + size_text(size), htod(size)});
  }
  return all;
}

void pass_turn(Turn* turn, uint32_t& count, bool first) {
  ++count;
  if (first) {
    turn->value.store(2 * count - 1, std::memory_order_release);
    spin_until(turn->value, 2 * count);
  } else {
    turn->value.store(2 * count, std::memory_order_release);
  }
}

// One operation of each process per round. The second waits for the first's.
void alternate(bool first, const Memory& m, Turn* turn) {
  uint32_t count = 0;
  for (const Named& operation : make_operations(m)) {
    for (bool both : {false, true}) {
      std::vector<double> times;
      for (int i = 0; i < 150; ++i) {
        const double begin = now_us();
        if (!first) spin_until(turn->value, 2 * count + 1);
        if (first || both) {
          operation.call();
          poll_until_done(m.stream);
        }
        pass_turn(turn, count, first);
        if (i >= kWarm) times.push_back(now_us() - begin);
      }
      if (!first) continue;
      const std::string name = "engines " + operation.name;
      if (both) say(name + ", in turn, per turn", median(times) / 2, "us");
      if (!both) say(name + ", the other silent", median(times), "us");
    }
  }
}

// The bare program with two copies per message: in by the first process, out by the second.
void two_copies(bool first, const Memory& m, Turn* turn) {
  uint32_t count = 0;
  for (bool engine : {false, true}) {
    for (size_t size : {size_t{16}, size_t{1} << 20, size_t{16} << 20, size_t{64} << 20, kMost}) {
      std::vector<double> times;
      for (int i = 0; i < 30; ++i) {
        const double begin = now_us();
        if (!first) spin_until(turn->value, 2 * count + 1);
        const CUdeviceptr to = first ? m.shared : m.own;
        const CUdeviceptr from = first ? m.own : m.shared;
        if (engine) {
          copy_batch(to, from, size, m.stream);
        } else {
          CHECK_CU(cuMemcpyDtoDAsync(to, from, size, m.stream));
        }
        poll_until_done(m.stream);
        pass_turn(turn, count, first);
        if (i >= 5) times.push_back(now_us() - begin);
      }
      if (!first) {
        must(read_word(m.own + size - 4) == 7, "the data arrived");
        write_word(m.own + size - 4, 0);
        continue;
      }
      const std::string name = std::string("engines two copies ") +
                               (engine ? "by copy engine of " : "of ") + size_text(size);
      say(name + ", one way", median(times), "us");
      say(name + ", one way, rate", size / median(times) / 1e3, "GB/s");
    }
  }
}

// One process alone: the rate of a device copy by a copy engine.
void measure_alone(const Memory& m) {
  for (size_t size : {size_t{1} << 20, size_t{16} << 20, size_t{64} << 20, kMost}) {
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) {
      const double begin = now_us();
      copy_batch(m.shared, m.own, size, m.stream);
      poll_until_done(m.stream);
      if (i >= 3) times.push_back(now_us() - begin);
    }
    say("engines alone, device copy by copy engine of " + size_text(size), median(times), "us");
  }
}

}  // namespace

int main() {
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  Turn* turns = shared_page<Turn>();
  Turn* later = shared_page<Turn>();
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  make_context();
  Memory m;
  CHECK_CU(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking));
  CHECK_CU(cuMemAlloc(&m.own, kMost));
  CHECK_CU(cuMemsetD32(m.own, child == 0 ? 0 : 7, kMost / 4));
  void* host = nullptr;
  CHECK_CU(cudaMallocHost(&host, size_t{16} << 20));
  m.host = reinterpret_cast<CUdeviceptr>(host);
  CHECK_CU(cuCtxSynchronize());
  if (child == 0) {
    m.shared = import_block(receive_descriptor(sockets[1]), kMost).at;
    alternate(false, m, turns);
    CHECK_CU(cuMemsetD32(m.own, 0, kMost / 4));
    CHECK_CU(cuCtxSynchronize());
    send_bytes(sockets[1], "r", 1);
    two_copies(false, m, later);
    _exit(0);
  }
  const Block block = create_block(kMost);
  m.shared = block.at;
  send_descriptor(sockets[0], export_block(block));
  alternate(true, m, turns);
  char byte;
  receive_bytes(sockets[0], &byte, 1);
  measure_alone(m);
  CHECK_CU(cuMemsetD32(m.own, 7, kMost / 4));
  CHECK_CU(cuCtxSynchronize());
  two_copies(true, m, later);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
