// Helpers of the GPU probes: errors, clocks, shared pages, descriptors, and CUDA's virtual memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace probe {

inline std::string text_of(CUresult result) {
  if (result == CUDA_SUCCESS) return "ok";
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return name != nullptr ? name : "unknown error " + std::to_string(result);
}

inline std::string text_of(cudaError_t result) {
  return result == cudaSuccess ? "ok" : cudaGetErrorName(result);
}

// Prints a line in one piece: `probe NAME: VALUE UNIT`.
inline void say(const std::string& name, double value, const char* unit) {
  std::printf("probe %s: %.2f %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

inline void say(const std::string& name, const std::string& text) {
  std::printf("probe %s: %s\n", name.c_str(), text.c_str());
  std::fflush(stdout);
}

template <typename Result>
void check(Result result, const char* call, const char* file, int line) {
  if (text_of(result) == "ok") return;
  say(std::string(file) + ":" + std::to_string(line) + " failed", call + (": " + text_of(result)));
  _exit(1);
}

#define CHECK_CU(call) ::probe::check((call), #call, __FILE__, __LINE__)

inline void must(bool good, const char* what) {
  if (good) return;
  say("failed", std::string(what) + ", errno " + std::to_string(errno));
  _exit(1);
}

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

inline double now_us() { return now_ns() / 1e3; }

inline double cpu_us() {
  rusage use;
  getrusage(RUSAGE_SELF, &use);
  return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 + use.ru_utime.tv_usec +
         use.ru_stime.tv_usec;
}

inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<size_t>((values.size() - 1) * share));
}

inline double median(const std::vector<double>& values) { return quantile(values, 0.5); }

inline std::string size_text(size_t bytes) {
  return bytes < (1 << 20) ? std::to_string(bytes) + " B" : std::to_string(bytes >> 20) + " MiB";
}

// A page that forked children share.
template <typename T>
T* shared_page() {
  void* at = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED, "mmap");
  return new (at) T();
}

inline void spin_until(const std::atomic<uint32_t>& flag, uint32_t value) {
  const int64_t begin = now_ns();
  for (uint64_t turn = 1; flag.load(std::memory_order_acquire) != value; ++turn) {
    if (turn % 4096 == 0) must(now_ns() - begin < 20'000'000'000, "flag came in 20 s");
  }
}

inline void send_bytes(int socket, const void* data, size_t size) {
  must(send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size), "send");
}

inline void receive_bytes(int socket, void* data, size_t size) {
  must(recv(socket, data, size, MSG_WAITALL) == static_cast<ssize_t>(size), "recv");
}

inline void send_descriptor(int socket, int descriptor) {
  char byte = 'd';
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  must(sendmsg(socket, &message, MSG_NOSIGNAL) == 1, "sendmsg");
}

inline int receive_descriptor(int socket) {
  char byte = 0;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  must(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1, "recvmsg");
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  must(header != nullptr && header->cmsg_type == SCM_RIGHTS, "a descriptor came");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

// Makes the primary context of device 0 and makes it current.
inline void make_context() {
  CHECK_CU(cuInit(0));
  CHECK_CU(cudaSetDevice(0));
  CHECK_CU(cudaFree(nullptr));
}

// Memory of cuMemCreate.
struct Block {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  size_t size = 0;
};

inline CUmemAllocationProp allocation_properties() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 0;
  return properties;
}

inline CUresult set_access(const Block& block) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 0;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return cuMemSetAccess(block.at, block.size, &access, 1);
}

inline void map_block(Block& block) {
  CHECK_CU(cuMemAddressReserve(&block.at, block.size, 0, 0, 0));
  CHECK_CU(cuMemMap(block.at, block.size, 0, block.handle, 0));
  CHECK_CU(set_access(block));
}

inline Block create_block(size_t size) {
  Block block;
  block.size = size;
  const CUmemAllocationProp properties = allocation_properties();
  CHECK_CU(cuMemCreate(&block.handle, size, &properties, 0));
  map_block(block);
  return block;
}

inline int export_block(const Block& block) {
  int descriptor = -1;
  CHECK_CU(cuMemExportToShareableHandle(&descriptor, block.handle,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return descriptor;
}

inline Block import_block(int descriptor, size_t size) {
  Block block;
  block.size = size;
  CHECK_CU(cuMemImportFromShareableHandle(
      &block.handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  map_block(block);
  return block;
}

inline uint32_t read_word(CUdeviceptr at) {
  uint32_t word = 0;
  CHECK_CU(cuMemcpyDtoH(&word, at, sizeof(word)));
  return word;
}

inline void write_word(CUdeviceptr at, uint32_t word) {
  CHECK_CU(cuMemcpyHtoD(at, &word, sizeof(word)));
  CHECK_CU(cuCtxSynchronize());
}

inline void poll_until_done(cudaStream_t stream) {
  cudaError_t state;
  while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
  }
  CHECK_CU(state);
}

}  // namespace probe
