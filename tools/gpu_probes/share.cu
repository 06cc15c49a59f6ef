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
  void Take(const std::string& step, Call call) {
    const double begin = NowUs();
    call();
    times_[step].push_back(NowUs() - begin);
  }

  void Print(const std::string& prefix, size_t size) {
    for (const auto& [step, times] : times_) {
      Say(prefix + " " + step + " " + Size(size), Median(times), "us");
      Say(prefix + " " + step + " slowest " + Size(size), Quantile(times, 1), "us");
    }
    times_.clear();
  }

 private:
  std::map<std::string, std::vector<double>> times_;
};

void Signal(int socket) { SendBytes(socket, "s", 1); }

void Wait(int socket) {
  char byte;
  ReceiveBytes(socket, &byte, 1);
}

void TakeMap(Times& times, Block& block) {
  times.Take("reserve", [&] { CHECK_CU(cuMemAddressReserve(&block.at, block.size, 0, 0, 0)); });
  times.Take("map", [&] { CHECK_CU(cuMemMap(block.at, block.size, 0, block.handle, 0)); });
  times.Take("set access", [&] { CHECK_CU(Access(block)); });
}

void TakeUnmap(Times& times, const Block& block) {
  times.Take("unmap", [&] { CHECK_CU(cuMemUnmap(block.at, block.size)); });
  times.Take("release", [&] { CHECK_CU(cuMemRelease(block.handle)); });
  times.Take("free address", [&] { CHECK_CU(cuMemAddressFree(block.at, block.size)); });
}

void ExportBlocks(int socket) {
  Times times;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      Block block;
      block.size = size;
      const CUmemAllocationProp properties = Properties();
      times.Take("create", [&] { CHECK_CU(cuMemCreate(&block.handle, size, &properties, 0)); });
      TakeMap(times, block);
      WriteWord(block.at + size - 4, 100 + round);
      int descriptor = -1;
      times.Take("export", [&] { descriptor = Export(block); });
      SendDescriptor(socket, descriptor);
      close(descriptor);
      Wait(socket);
      Must(ReadWord(block.at + size - 4) == uint32_t(200 + round), "the exporter sees the word");
      TakeUnmap(times, block);
      Signal(socket);
      Wait(socket);
    }
    times.Print("share vmm exporter", size);
  }
}

void ImportBlocks(int socket) {
  Times times;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      const int descriptor = ReceiveDescriptor(socket);
      Block block;
      block.size = size;
      times.Take("import", [&] {
        CHECK_CU(cuMemImportFromShareableHandle(
            &block.handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      });
      close(descriptor);
      TakeMap(times, block);
      Must(ReadWord(block.at + size - 4) == uint32_t(100 + round), "the importer sees the word");
      WriteWord(block.at + size - 4, 200 + round);
      Signal(socket);
      Wait(socket);
      Must(ReadWord(block.at + size - 4) == uint32_t(200 + round), "the word outlives its owner");
      if (size == kSizes[0] && round == 0) {
        int again = -1;
        Say("share vmm importer exports again",
            Text(cuMemExportToShareableHandle(&again, block.handle,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
        close(again);
      }
      TakeUnmap(times, block);
      Signal(socket);
    }
    times.Print("share vmm importer", size);
  }
  Say("share vmm", "works, also after the exporter has released the memory");
}

void ExportHandles(int socket) {
  Times times;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      char* at = nullptr;
      times.Take("cudaMalloc", [&] { CHECK_CU(cudaMalloc(&at, size)); });
      WriteWord(CUdeviceptr(at) + size - 4, 100 + round);
      cudaIpcMemHandle_t handle;
      times.Take("get handle", [&] { CHECK_CU(cudaIpcGetMemHandle(&handle, at)); });
      SendBytes(socket, &handle, sizeof(handle));
      Wait(socket);
      Must(ReadWord(CUdeviceptr(at) + size - 4) == uint32_t(200 + round), "the exporter sees it");
      times.Take("cudaFree", [&] { CHECK_CU(cudaFree(at)); });
    }
    times.Print("share ipc exporter", size);
  }
  // A handle of the middle of an allocation, and of an allocation that is freed first.
  char* at = nullptr;
  CHECK_CU(cudaMalloc(&at, 4 << 20));
  WriteWord(CUdeviceptr(at), 1);
  WriteWord(CUdeviceptr(at) + (1 << 20), 2);
  cudaIpcMemHandle_t handle;
  const cudaError_t middle = cudaIpcGetMemHandle(&handle, at + (1 << 20));
  Say("share ipc handle of the middle of an allocation", Text(middle));
  SendBytes(socket, &handle, sizeof(handle));
  Wait(socket);
  CHECK_CU(cudaIpcGetMemHandle(&handle, at));
  SendBytes(socket, &handle, sizeof(handle));
  Wait(socket);
  CHECK_CU(cudaFree(at));
  Signal(socket);
  Wait(socket);
  // Can memory of cudaMalloc become a descriptor?
  CHECK_CU(cudaMalloc(&at, 4 << 20));
  CUmemGenericAllocationHandle retained = 0;
  Say("share cuMemRetainAllocationHandle of cudaMalloc memory",
      Text(cuMemRetainAllocationHandle(&retained, at)));
  void* pooled = nullptr;
  CHECK_CU(cudaMallocAsync(&pooled, 4 << 20, 0));
  CHECK_CU(cudaStreamSynchronize(0));
  Say("share ipc handle of cudaMallocAsync memory", Text(cudaIpcGetMemHandle(&handle, pooled)));
  cudaGetLastError();
  const Block block = Create(2 << 20);
  Say("share ipc handle of cuMemCreate memory",
      Text(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(block.at))));
  cudaGetLastError();
  // An event of this process, awaited by a stream of the other.
  cudaEvent_t event;
  CHECK_CU(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
  cudaIpcEventHandle_t event_handle;
  CHECK_CU(cudaIpcGetEventHandle(&event_handle, event));
  CHECK_CU(cudaEventRecord(event, 0));
  SendBytes(socket, &event_handle, sizeof(event_handle));
  Wait(socket);
}

void ImportHandles(int socket) {
  Times times;
  cudaIpcMemHandle_t handle;
  void* at = nullptr;
  for (size_t size : kSizes) {
    for (int round = 0; round < kRounds; ++round) {
      ReceiveBytes(socket, &handle, sizeof(handle));
      times.Take("open handle", [&] {
        CHECK_CU(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
      });
      Must(ReadWord(CUdeviceptr(at) + size - 4) == uint32_t(100 + round), "the importer sees it");
      WriteWord(CUdeviceptr(at) + size - 4, 200 + round);
      times.Take("close handle", [&] { CHECK_CU(cudaIpcCloseMemHandle(at)); });
      Signal(socket);
    }
    times.Print("share ipc importer", size);
  }
  Say("share ipc", "works");
  ReceiveBytes(socket, &handle, sizeof(handle));
  const cudaError_t middle = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
  Say("share ipc opened handle of the middle",
      Text(middle) + (middle != cudaSuccess            ? ""
                      : ReadWord(CUdeviceptr(at)) == 1 ? ", points to the allocation's begin"
                                                       : ", points to the middle"));
  if (middle == cudaSuccess) CHECK_CU(cudaIpcCloseMemHandle(at));
  Signal(socket);
  ReceiveBytes(socket, &handle, sizeof(handle));
  CHECK_CU(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
  void* twice = nullptr;
  const cudaError_t second = cudaIpcOpenMemHandle(&twice, handle, cudaIpcMemLazyEnablePeerAccess);
  Say("share ipc same handle opened twice",
      Text(second) + (twice == at ? ", same address" : ", other address"));
  cudaGetLastError();
  Signal(socket);
  Wait(socket);
  uint32_t word = 0;
  const CUresult read = cuMemcpyDtoH(&word, CUdeviceptr(at), 4);
  Say("share ipc read after the exporter's cudaFree",
      Text(read) + ", the word is " + (word == 1 ? "unchanged" : "lost"));
  Say("share ipc close after the exporter's cudaFree", Text(cudaIpcCloseMemHandle(at)));
  cudaGetLastError();
  Signal(socket);
  cudaIpcEventHandle_t event_handle;
  ReceiveBytes(socket, &event_handle, sizeof(event_handle));
  cudaEvent_t event;
  const cudaError_t opened = cudaIpcOpenEventHandle(&event, event_handle);
  std::string text = Text(opened);
  if (opened == cudaSuccess) {
    text += ", wait " + Text(cudaStreamWaitEvent(0, event, 0));
    text += ", synchronize " + Text(cudaStreamSynchronize(0));
  }
  Say("share ipc event", text);
  Signal(socket);
}

}  // namespace

int main() {
  int sockets[2];
  Must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  const int socket = sockets[child == 0 ? 1 : 0];
  close(sockets[child == 0 ? 0 : 1]);
  Begin();
  if (child == 0) {
    ImportBlocks(socket);
    ImportHandles(socket);
    _exit(0);
  }
  int posix = 0;
  CHECK_CU(cuDeviceGetAttribute(
      &posix, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
  const CUmemAllocationProp properties = Properties();
  size_t least = 0;
  CHECK_CU(cuMemGetAllocationGranularity(&least, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  Say("share vmm posix descriptors supported", posix, "");
  Say("share vmm granularity", least, "bytes");
  ExportBlocks(socket);
  ExportHandles(socket);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
