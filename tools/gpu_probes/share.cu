// Shares device memory between two processes: cuMemCreate as a descriptor, and cudaIpc handles.
#include <map>

#include "common.h"

using namespace probe;

namespace {

constexpr size_t kSizes[] = {size_t{2} << 20, size_t{64} << 20, size_t{256} << 20, size_t{1} << 30};
constexpr int kRounds = 7;

class Times {
 public:
  template <typename Call>
  void take(const std::string& step, Call call) {
    const double begin = now_us();
    call();
    times_[step].push_back(now_us() - begin);
  }

  void print(const std::string& prefix, size_t size) {
    for (const auto& [step, times] : times_) {
      say(prefix + " " + step + " " + size_text(size), median(times), "us");
      say(prefix + " " + step + " slowest " + size_text(size), quantile(times, 1), "us");
    }
    times_.clear();
  }

 private:
  std::map<std::string, std::vector<double>> times_;
};

void send_signal(int socket) { send_bytes(socket, "s", 1); }

void wait_signal(int socket) {
  char byte;
  receive_bytes(socket, &byte, 1);
}

void take_map(Times& times, Block& block) {
  times.take("reserve", [&] { CHECK_CU(cuMemAddressReserve(&block.at, block.size, 0, 0, 0)); });
  times.take("map", [&] { CHECK_CU(cuMemMap(block.at, block.size, 0, block.handle, 0)); });
  times.take("set access", [&] { CHECK_CU(set_access(block)); });
}

void take_unmap(Times& times, const Block& block) {
  times.take("unmap", [&] { CHECK_CU(cuMemUnmap(block.at, block.size)); });
  times.take("release", [&] { CHECK_CU(cuMemRelease(block.handle)); });
  times.take("free address", [&] { CHECK_CU(cuMemAddressFree(block.at, block.size)); });
}

void export_blocks(int socket) {
  Times times;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      Block block;
      block.size = size;
      const CUmemAllocationProp properties = allocation_properties();
      times.take("create", [&] { CHECK_CU(cuMemCreate(&block.handle, size, &properties, 0)); });
      take_map(times, block);
      write_word(block.at + size - 4, 100 + round);
      int descriptor = -1;
      times.take("export", [&] { descriptor = export_block(block); });
      send_descriptor(socket, descriptor);
      close(descriptor);
      wait_signal(socket);
      must(read_word(block.at + size - 4) == uint32_t(200 + round), "the exporter sees the word");
      take_unmap(times, block);
      send_signal(socket);
      wait_signal(socket);
    }
    times.print("share vmm exporter", size);
  }
}

void import_blocks(int socket) {
  Times times;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      const int descriptor = receive_descriptor(socket);
      Block block;
      block.size = size;
      times.take("import", [&] {
        CHECK_CU(cuMemImportFromShareableHandle(
            &block.handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      });
      close(descriptor);
      take_map(times, block);
      must(read_word(block.at + size - 4) == uint32_t(100 + round), "the importer sees the word");
      write_word(block.at + size - 4, 200 + round);
      send_signal(socket);
      wait_signal(socket);
      must(read_word(block.at + size - 4) == uint32_t(200 + round), "the word outlives its owner");
      if (size == kSizes[0] && round == 0) {
        int again = -1;
        say("share vmm importer exports again",
            text_of(cuMemExportToShareableHandle(&again, block.handle,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
        close(again);
      }
      take_unmap(times, block);
      send_signal(socket);
    }
    times.print("share vmm importer", size);
  }
  say("share vmm", "works, also after the exporter has released the memory");
}

void export_handles(int socket) {
  Times times;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      char* at = nullptr;
      times.take("cudaMalloc", [&] { CHECK_CU(cudaMalloc(&at, size)); });
      write_word(CUdeviceptr(at) + size - 4, 100 + round);
      cudaIpcMemHandle_t handle;
      times.take("get handle", [&] { CHECK_CU(cudaIpcGetMemHandle(&handle, at)); });
      send_bytes(socket, &handle, sizeof(handle));
      wait_signal(socket);
      must(read_word(CUdeviceptr(at) + size - 4) == uint32_t(200 + round), "the exporter sees it");
      times.take("cudaFree", [&] { CHECK_CU(cudaFree(at)); });
    }
    times.print("share ipc exporter", size);
  }
  // A handle of the middle of an allocation, and of an allocation that is freed first.
  char* at = nullptr;
  CHECK_CU(cudaMalloc(&at, 4 << 20));
  write_word(CUdeviceptr(at), 1);
  write_word(CUdeviceptr(at) + (1 << 20), 2);
  cudaIpcMemHandle_t handle;
  const cudaError_t middle = cudaIpcGetMemHandle(&handle, at + (1 << 20));
  say("share ipc handle of the middle of an allocation", text_of(middle));
  send_bytes(socket, &handle, sizeof(handle));
  wait_signal(socket);
  CHECK_CU(cudaIpcGetMemHandle(&handle, at));
  send_bytes(socket, &handle, sizeof(handle));
  wait_signal(socket);
  CHECK_CU(cudaFree(at));
  send_signal(socket);
  wait_signal(socket);
  // Can memory of cudaMalloc become a descriptor?
  CHECK_CU(cudaMalloc(&at, 4 << 20));
  CUmemGenericAllocationHandle retained = 0;
  say("share cuMemRetainAllocationHandle of cudaMalloc memory",
      text_of(cuMemRetainAllocationHandle(&retained, at)));
  void* pooled = nullptr;
  CHECK_CU(cudaMallocAsync(&pooled, 4 << 20, 0));
  CHECK_CU(cudaStreamSynchronize(0));
  say("share ipc handle of cudaMallocAsync memory", text_of(cudaIpcGetMemHandle(&handle, pooled)));
  cudaGetLastError();
  const Block block = create_block(2 << 20);
  say("share ipc handle of cuMemCreate memory",
      text_of(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(block.at))));
  cudaGetLastError();
  // An event of this process, awaited by a stream of the other.
  cudaEvent_t event;
  CHECK_CU(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
  cudaIpcEventHandle_t event_handle;
  CHECK_CU(cudaIpcGetEventHandle(&event_handle, event));
  CHECK_CU(cudaEventRecord(event, 0));
  send_bytes(socket, &event_handle, sizeof(event_handle));
  wait_signal(socket);
}

void import_handles(int socket) {
  Times times;
  cudaIpcMemHandle_t handle;
  void* at = nullptr;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      receive_bytes(socket, &handle, sizeof(handle));
      times.take("open handle", [&] {
        CHECK_CU(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
      });
      must(read_word(CUdeviceptr(at) + size - 4) == uint32_t(100 + round), "the importer sees it");
      write_word(CUdeviceptr(at) + size - 4, 200 + round);
      times.take("close handle", [&] { CHECK_CU(cudaIpcCloseMemHandle(at)); });
      send_signal(socket);
    }
    times.print("share ipc importer", size);
  }
  say("share ipc", "works");
  receive_bytes(socket, &handle, sizeof(handle));
  const cudaError_t middle = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
  say("share ipc opened handle of the middle",
      text_of(middle) + (middle != cudaSuccess             ? ""
                         : read_word(CUdeviceptr(at)) == 1 ? ", points to the allocation's begin"
                                                           : ", points to the middle"));
  if (middle == cudaSuccess) CHECK_CU(cudaIpcCloseMemHandle(at));
  send_signal(socket);
  receive_bytes(socket, &handle, sizeof(handle));
  CHECK_CU(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
  void* twice = nullptr;
  const cudaError_t second = cudaIpcOpenMemHandle(&twice, handle, cudaIpcMemLazyEnablePeerAccess);
  say("share ipc same handle opened twice",
      text_of(second) + (twice == at ? ", same address" : ", other address"));
  cudaGetLastError();
  send_signal(socket);
  wait_signal(socket);
  uint32_t word = 0;
  const CUresult read = cuMemcpyDtoH(&word, CUdeviceptr(at), 4);
  say("share ipc read after the exporter's cudaFree",
      text_of(read) + ", the word is " + (word == 1 ? "unchanged" : "lost"));
  say("share ipc close after the exporter's cudaFree", text_of(cudaIpcCloseMemHandle(at)));
  cudaGetLastError();
  send_signal(socket);
  cudaIpcEventHandle_t event_handle;
  receive_bytes(socket, &event_handle, sizeof(event_handle));
  cudaEvent_t event;
  const cudaError_t opened = cudaIpcOpenEventHandle(&event, event_handle);
  std::string text = text_of(opened);
  if (opened == cudaSuccess) {
    text += ", wait " + text_of(cudaStreamWaitEvent(0, event, 0));
    text += ", synchronize " + text_of(cudaStreamSynchronize(0));
  }
  say("share ipc event", text);
  send_signal(socket);
}

}  // namespace

int main() {
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  const int socket = sockets[child == 0 ? 1 : 0];
  close(sockets[child == 0 ? 0 : 1]);
  make_context();
  if (child == 0) {
    import_blocks(socket);
    import_handles(socket);
    _exit(0);
  }
  int posix = 0;
  CHECK_CU(cuDeviceGetAttribute(
      &posix, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
  const CUmemAllocationProp properties = allocation_properties();
  size_t least = 0;
  CHECK_CU(cuMemGetAllocationGranularity(&least, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  say("share vmm posix descriptors supported", posix, "");
  say("share vmm granularity", least, "bytes");
  export_blocks(socket);
  export_handles(socket);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
