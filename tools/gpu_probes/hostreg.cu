// cudaHostRegister on a mapping of a sealed memfd, in one process and in two.
#include "common.h"

using namespace probe;

namespace {

constexpr size_t kSizes[] = {size_t{2} << 20, size_t{64} << 20, size_t{256} << 20, size_t{1} << 30};

int make_sealed(size_t size) {
  const int descriptor =
      static_cast<int>(syscall(SYS_memfd_create, "probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  must(descriptor >= 0 && ftruncate(descriptor, size) == 0, "memfd");
  must(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seals");
  return descriptor;
}

char* map_shared(int descriptor, size_t size, int protection) {
  void* at = mmap(nullptr, size, protection, MAP_SHARED, descriptor, 0);
  must(at != MAP_FAILED, "mmap");
  return static_cast<char*>(at);
}

// Copies a word to the device and back to another place of the memory.
std::string try_copies(char* host, size_t size) {
  void* device = nullptr;
  CHECK_CU(cudaMalloc(&device, size));
  std::memset(host, 0x5a, size / 2);
  const cudaError_t in = cudaMemcpy(device, host, size / 2, cudaMemcpyHostToDevice);
  const cudaError_t out = cudaMemcpy(host + size / 2, device, size / 2, cudaMemcpyDeviceToHost);
  const bool right = std::memcmp(host, host + size / 2, size / 2) == 0;
  CHECK_CU(cudaFree(device));
  return "copy in " + text_of(in) + ", copy out " + text_of(out) + ", data " +
         (right ? "right" : "wrong");
}

}  // namespace

int main() {
  rlimit limit;
  getrlimit(RLIMIT_MEMLOCK, &limit);
  say("hostreg RLIMIT_MEMLOCK",
      limit.rlim_cur == RLIM_INFINITY ? "none" : size_text(limit.rlim_cur));
  const int shared = make_sealed(64 << 20);
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  make_context();
  char byte = 's';
  if (child == 0) {
    receive_bytes(sockets[1], &byte, 1);
    char* at = map_shared(shared, 64 << 20, PROT_READ | PROT_WRITE);
    say("hostreg same memfd registered by a second process",
        text_of(cudaHostRegister(at, 64 << 20, cudaHostRegisterDefault)) + ", " +
            try_copies(at, 64 << 20));
    send_bytes(sockets[1], "s", 1);
    pause();
  }
  for (size_t size : kSizes) {
    for (bool touched : {false, true}) {
      std::vector<double> on, off;
      std::string text;
      for (int i = 0; i < 5; ++i) {
        const int descriptor = make_sealed(size);
        char* at = map_shared(descriptor, size, PROT_READ | PROT_WRITE);
        if (touched) std::memset(at, 1, size);
        double begin = now_us();
        const cudaError_t result = cudaHostRegister(at, size, cudaHostRegisterDefault);
        on.push_back(now_us() - begin);
        text = text_of(result);
        if (result == cudaSuccess) {
          if (i == 0) text += ", " + try_copies(at, size);
          begin = now_us();
          CHECK_CU(cudaHostUnregister(at));
          off.push_back(now_us() - begin);
        }
        if (i == 0) {
          say("hostreg sealed memfd " + size_text(size) + (touched ? " touched" : " untouched"),
              text);
        }
        munmap(at, size);
        close(descriptor);
      }
      cudaGetLastError();
      const std::string name = size_text(size) + (touched ? " touched" : " untouched");
      say("hostreg cudaHostRegister " + name, median(on), "us");
      if (!off.empty()) say("hostreg cudaHostUnregister " + name, median(off), "us");
    }
  }
  char* at = map_shared(shared, 64 << 20, PROT_READ | PROT_WRITE);
  say("hostreg first process", text_of(cudaHostRegister(at, 64 << 20, cudaHostRegisterDefault)));
  send_bytes(sockets[0], "s", 1);
  receive_bytes(sockets[0], &byte, 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  say("hostreg first process after kill -9 of the second", try_copies(at, 64 << 20));
  say("hostreg same range registered twice", text_of(cudaHostRegister(at, 64 << 20, 0)));
  cudaGetLastError();
  const int punched = fallocate(shared, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 64 << 20);
  say("hostreg hole punched under a registered range",
      std::string(punched == 0 ? "ok" : std::strerror(errno)) + ", " + try_copies(at, 64 << 20));
  CHECK_CU(cudaHostUnregister(at));
  say("hostreg part of a mapping, off by a page",
      text_of(cudaHostRegister(at + 4096, 1 << 20, cudaHostRegisterDefault)));
  cudaGetLastError();
  char* reading = map_shared(shared, 64 << 20, PROT_READ);
  say("hostreg mapping for reading only, default flags",
      text_of(cudaHostRegister(reading, 64 << 20, cudaHostRegisterDefault)));
  cudaGetLastError();
  char* reading_too = map_shared(shared, 64 << 20, PROT_READ);
  say("hostreg mapping for reading only, cudaHostRegisterReadOnly",
      text_of(cudaHostRegister(reading_too, 64 << 20, cudaHostRegisterReadOnly)));
  cudaGetLastError();
  return 0;
}
