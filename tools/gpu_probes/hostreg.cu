// cudaHostRegister on a mapping of a sealed memfd, in one process and in two.
#include "common.h"

using namespace probe;

namespace {

constexpr size_t kSizes[] = {size_t{2} << 20, size_t{64} << 20, size_t{256} << 20, size_t{1} << 30};

int Sealed(size_t size) {
  const int descriptor =
      static_cast<int>(syscall(SYS_memfd_create, "probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Must(descriptor >= 0 && ftruncate(descriptor, size) == 0, "memfd");
  Must(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seals");
  return descriptor;
}

char* MapShared(int descriptor, size_t size, int protection) {
  void* at = mmap(nullptr, size, protection, MAP_SHARED, descriptor, 0);
  Must(at != MAP_FAILED, "mmap");
  return static_cast<char*>(at);
}

// Copies a word to the device and back to another place of the memory.
std::string Copies(char* host, size_t size) {
  void* device = nullptr;
  CHECK_CU(cudaMalloc(&device, size));
  std::memset(host, 0x5a, size / 2);
  const cudaError_t in = cudaMemcpy(device, host, size / 2, cudaMemcpyHostToDevice);
  const cudaError_t out = cudaMemcpy(host + size / 2, device, size / 2, cudaMemcpyDeviceToHost);
  const bool right = std::memcmp(host, host + size / 2, size / 2) == 0;
  CHECK_CU(cudaFree(device));
  return "copy in " + Text(in) + ", copy out " + Text(out) + ", data " +
         (right ? "right" : "wrong");
}

}  // namespace

int main() {
  rlimit limit;
  getrlimit(RLIMIT_MEMLOCK, &limit);
  Say("hostreg RLIMIT_MEMLOCK", limit.rlim_cur == RLIM_INFINITY ? "none" : Size(limit.rlim_cur));
  const int shared = Sealed(64 << 20);
  int sockets[2];
  Must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  Begin();
  char byte = 's';
  if (child == 0) {
    ReceiveBytes(sockets[1], &byte, 1);
    char* at = MapShared(shared, 64 << 20, PROT_READ | PROT_WRITE);
    Say("hostreg same memfd registered by a second process",
        Text(cudaHostRegister(at, 64 << 20, cudaHostRegisterDefault)) + ", " +
            Copies(at, 64 << 20));
    SendBytes(sockets[1], "s", 1);
    pause();
  }
  for (size_t size : kSizes) {
    for (bool touched : {false, true}) {
      std::vector<double> on, off;
      std::string text;
      for (int i = 0; i < 5; ++i) {
        const int descriptor = Sealed(size);
        char* at = MapShared(descriptor, size, PROT_READ | PROT_WRITE);
        if (touched) std::memset(at, 1, size);
        double begin = NowUs();
        const cudaError_t result = cudaHostRegister(at, size, cudaHostRegisterDefault);
        on.push_back(NowUs() - begin);
        text = Text(result);
        if (result == cudaSuccess) {
          if (i == 0) text += ", " + Copies(at, size);
          begin = NowUs();
          CHECK_CU(cudaHostUnregister(at));
          off.push_back(NowUs() - begin);
        }
        if (i == 0) {
          Say("hostreg sealed memfd " + Size(size) + (touched ? " touched" : " untouched"), text);
        }
        munmap(at, size);
        close(descriptor);
      }
      cudaGetLastError();
      const std::string name = Size(size) + (touched ? " touched" : " untouched");
      Say("hostreg cudaHostRegister " + name, Median(on), "us");
      if (!off.empty()) Say("hostreg cudaHostUnregister " + name, Median(off), "us");
    }
  }
  char* at = MapShared(shared, 64 << 20, PROT_READ | PROT_WRITE);
  Say("hostreg first process", Text(cudaHostRegister(at, 64 << 20, cudaHostRegisterDefault)));
  SendBytes(sockets[0], "s", 1);
  ReceiveBytes(sockets[0], &byte, 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  Say("hostreg first process after kill -9 of the second", Copies(at, 64 << 20));
  Say("hostreg same range registered twice", Text(cudaHostRegister(at, 64 << 20, 0)));
  cudaGetLastError();
  const int punched = fallocate(shared, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 64 << 20);
  Say("hostreg hole punched under a registered range",
      std::string(punched == 0 ? "ok" : std::strerror(errno)) + ", " + Copies(at, 64 << 20));
  CHECK_CU(cudaHostUnregister(at));
  Say("hostreg part of a mapping, off by a page",
      Text(cudaHostRegister(at + 4096, 1 << 20, cudaHostRegisterDefault)));
  cudaGetLastError();
  char* reading = MapShared(shared, 64 << 20, PROT_READ);
  Say("hostreg mapping for reading only, default flags",
      Text(cudaHostRegister(reading, 64 << 20, cudaHostRegisterDefault)));
  cudaGetLastError();
  char* reading_too = MapShared(shared, 64 << 20, PROT_READ);
  Say("hostreg mapping for reading only, cudaHostRegisterReadOnly",
      Text(cudaHostRegister(reading_too, 64 << 20, cudaHostRegisterReadOnly)));
  cudaGetLastError();
  return 0;
}
