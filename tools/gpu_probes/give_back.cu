// When is shared device memory given back after a process that exported or imported it was killed?
//
// The parent has no CUDA context. It gives one-letter commands to its children: an observer that
// reads the free memory of the device, an exporter and an importer.
#include <sys/prctl.h>

#include "common.h"

using namespace probe;

namespace {

constexpr size_t kSize = size_t{2} << 30;
constexpr uint32_t kWord = 4711;

struct Child {
  pid_t pid = -1;
  int socket = -1;
};

// What a child holds. `at` is 0 if it holds nothing.
struct Memory {
  Block block;
  CUdeviceptr at = 0;
};

int64_t Free() {
  size_t free_bytes = 0;
  size_t total = 0;
  CHECK_CU(cuMemGetInfo(&free_bytes, &total));
  return static_cast<int64_t>(free_bytes >> 20);
}

void MakeVmm(Memory& memory, int socket) {
  memory.block = Create(kSize);
  memory.at = memory.block.at;
  WriteWord(memory.at + kSize - 4, kWord);
  const int descriptor = Export(memory.block);
  SendDescriptor(socket, descriptor);
  close(descriptor);
}

void MakeIpc(Memory& memory, int socket) {
  CHECK_CU(cuMemAlloc(&memory.at, kSize));
  WriteWord(memory.at + kSize - 4, kWord);
  cudaIpcMemHandle_t handle;
  CHECK_CU(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(memory.at)));
  SendBytes(socket, &handle, sizeof(handle));
}

void OpenIpc(Memory& memory, int socket) {
  cudaIpcMemHandle_t handle;
  ReceiveBytes(socket, &handle, sizeof(handle));
  void* at = nullptr;
  CHECK_CU(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
  memory.at = CUdeviceptr(at);
}

void GiveBack(const Memory& memory, bool imported) {
  if (memory.block.handle != 0) {
    CHECK_CU(cuMemUnmap(memory.block.at, kSize));
    CHECK_CU(cuMemRelease(memory.block.handle));
    CHECK_CU(cuMemAddressFree(memory.block.at, kSize));
  } else if (imported) {
    CHECK_CU(cudaIpcCloseMemHandle(reinterpret_cast<void*>(memory.at)));
  } else {
    CHECK_CU(cuMemFree(memory.at));
  }
}

[[noreturn]] void Serve(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Begin();
  Memory memory;
  bool imported = false;
  for (char command = 0; recv(socket, &command, 1, 0) == 1;) {
    int64_t answer = 0;
    if (command == 'f') answer = Free();
    if (command == 'v') MakeVmm(memory, socket);
    if (command == 'h') MakeIpc(memory, socket);
    if (command == 'i') memory.block = Import(ReceiveDescriptor(socket), kSize);
    if (command == 'i') memory.at = memory.block.at;
    if (command == 'o') OpenIpc(memory, socket);
    if (command == 'r') answer = ReadWord(memory.at + kSize - 4);
    if (command == 'u') GiveBack(memory, imported);
    imported = imported || command == 'i' || command == 'o';
    SendBytes(socket, &answer, sizeof(answer));
  }
  _exit(0);
}

Child Start() {
  int sockets[2];
  Must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    close(sockets[0]);
    Serve(sockets[1]);
  }
  close(sockets[1]);
  child.socket = sockets[0];
  return child;
}

int64_t Answer(const Child& child) {
  int64_t answer = 0;
  ReceiveBytes(child.socket, &answer, sizeof(answer));
  return answer;
}

int64_t Do(const Child& child, char command) {
  SendBytes(child.socket, &command, 1);
  return Answer(child);
}

// Returns as soon as the pidfd says that the process is gone.
void Kill(Child& child) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0));
  kill(child.pid, SIGKILL);
  pollfd ready = {pidfd, POLLIN, 0};
  Must(poll(&ready, 1, 10000) == 1, "pidfd");
  close(pidfd);
  waitpid(child.pid, nullptr, 0);
  close(child.socket);
}

class Report {
 public:
  Report(const Child& observer, std::string name) : observer_(observer), name_(std::move(name)) {
    Say("give_back " + name_ + ", free before", last_ = Do(observer_, 'f'), "MiB");
  }

  void Step(const std::string& what) {
    int64_t now = Do(observer_, 'f');
    Say("give_back " + name_ + ", " + what + ", change at once", now - last_, "MiB");
    usleep(300'000);
    const int64_t later = Do(observer_, 'f');
    if (later != now) {
      Say("give_back " + name_ + ", " + what + ", change after 0.3 s", later - last_, "MiB");
    }
    last_ = later;
  }

  void Word(const Child& reader) {
    Say("give_back " + name_ + ", the survivor reads",
        Do(reader, 'r') == kWord ? "the right word" : "another word");
  }

 private:
  const Child& observer_;
  std::string name_;
  int64_t last_ = 0;
};

void Share(const Child& exporter, const Child& importer, bool vmm) {
  SendBytes(exporter.socket, vmm ? "v" : "h", 1);
  if (vmm) {
    const int descriptor = ReceiveDescriptor(exporter.socket);
    Answer(exporter);
    SendBytes(importer.socket, "i", 1);
    SendDescriptor(importer.socket, descriptor);
    close(descriptor);
  } else {
    cudaIpcMemHandle_t handle;
    ReceiveBytes(exporter.socket, &handle, sizeof(handle));
    Answer(exporter);
    SendBytes(importer.socket, "o", 1);
    SendBytes(importer.socket, &handle, sizeof(handle));
  }
  Answer(importer);
}

void Case(const Child& observer, bool vmm, bool exporter_dies) {
  Report report(observer, std::string(vmm ? "vmm" : "ipc") +
                              (exporter_dies ? " exporter killed" : " importer killed"));
  Child exporter = Start();
  Child importer = Start();
  Do(exporter, 'f');
  Do(importer, 'f');
  report.Step("two contexts made");
  Share(exporter, importer, vmm);
  report.Step("2048 MiB shared");
  Child& victim = exporter_dies ? exporter : importer;
  Child& survivor = exporter_dies ? importer : exporter;
  Kill(victim);
  report.Step("killed");
  report.Word(survivor);
  Do(survivor, 'u');
  report.Step("survivor gave it back");
  Kill(survivor);
  report.Step("survivor killed");
}

// The exporter dies while its descriptor is held by a process without CUDA.
void HeldDescriptor(const Child& observer) {
  Report report(observer, "vmm descriptor held by a process without CUDA");
  Child exporter = Start();
  Do(exporter, 'f');
  report.Step("context made");
  SendBytes(exporter.socket, "v", 1);
  const int descriptor = ReceiveDescriptor(exporter.socket);
  Answer(exporter);
  report.Step("2048 MiB made");
  Kill(exporter);
  report.Step("exporter killed");
  Child importer = Start();
  Do(importer, 'f');
  report.Step("another context made");
  SendBytes(importer.socket, "i", 1);
  SendDescriptor(importer.socket, descriptor);
  close(descriptor);
  Answer(importer);
  report.Word(importer);
  Kill(importer);
  report.Step("importer killed");
}

}  // namespace

int main() {
  signal(SIGPIPE, SIG_IGN);
  Child observer = Start();
  Do(observer, 'f');
  for (bool vmm : {true, false}) {
    for (bool exporter_dies : {true, false}) Case(observer, vmm, exporter_dies);
  }
  HeldDescriptor(observer);
  Kill(observer);
  return 0;
}
