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

// The memory of one child. `at` is 0 if it holds nothing.
struct Memory {
  Block block;
  CUdeviceptr at = 0;
};

int64_t free_device_mib() {
  size_t free_bytes = 0;
  size_t total = 0;
  CHECK_CU(cuMemGetInfo(&free_bytes, &total));
  return static_cast<int64_t>(free_bytes >> 20);
}

void make_vmm(Memory& memory, int socket) {
  memory.block = create_block(kSize);
  memory.at = memory.block.at;
  write_word(memory.at + kSize - 4, kWord);
  const int descriptor = export_block(memory.block);
  send_descriptor(socket, descriptor);
  close(descriptor);
}

void make_ipc(Memory& memory, int socket) {
  CHECK_CU(cuMemAlloc(&memory.at, kSize));
  write_word(memory.at + kSize - 4, kWord);
  cudaIpcMemHandle_t handle;
  CHECK_CU(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(memory.at)));
  send_bytes(socket, &handle, sizeof(handle));
}

void open_ipc(Memory& memory, int socket) {
  cudaIpcMemHandle_t handle;
  receive_bytes(socket, &handle, sizeof(handle));
  void* at = nullptr;
  CHECK_CU(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
  memory.at = CUdeviceptr(at);
}

void give_back(const Memory& memory, bool imported) {
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

[[noreturn]] void serve(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  make_context();
  Memory memory;
  bool imported = false;
  for (char command = 0; recv(socket, &command, 1, 0) == 1;) {
    int64_t answer = 0;
    if (command == 'f') answer = free_device_mib();
    if (command == 'v') make_vmm(memory, socket);
    if (command == 'h') make_ipc(memory, socket);
    if (command == 'i') memory.block = import_block(receive_descriptor(socket), kSize);
    if (command == 'i') memory.at = memory.block.at;
    if (command == 'o') open_ipc(memory, socket);
    if (command == 'r') answer = read_word(memory.at + kSize - 4);
    if (command == 'u') give_back(memory, imported);
    imported = imported || command == 'i' || command == 'o';
    send_bytes(socket, &answer, sizeof(answer));
  }
  _exit(0);
}

Child start_child() {
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    close(sockets[0]);
    serve(sockets[1]);
  }
  close(sockets[1]);
  child.socket = sockets[0];
  return child;
}

int64_t read_answer(const Child& child) {
  int64_t answer = 0;
  receive_bytes(child.socket, &answer, sizeof(answer));
  return answer;
}

int64_t obey(const Child& child, char command) {
  send_bytes(child.socket, &command, 1);
  return read_answer(child);
}

// Returns as soon as the pidfd says that the process is gone.
void kill_child(Child& child) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0));
  kill(child.pid, SIGKILL);
  pollfd ready = {pidfd, POLLIN, 0};
  must(poll(&ready, 1, 10000) == 1, "pidfd");
  close(pidfd);
  waitpid(child.pid, nullptr, 0);
  close(child.socket);
}

class Report {
 public:
  Report(const Child& observer, std::string name) : observer_(observer), name_(std::move(name)) {
    say("give_back " + name_ + ", free before", last_ = obey(observer_, 'f'), "MiB");
  }

  void take_step(const std::string& what) {
    int64_t now = obey(observer_, 'f');
    say("give_back " + name_ + ", " + what + ", change at once", now - last_, "MiB");
    usleep(300'000);
    const int64_t later = obey(observer_, 'f');
    if (later != now) {
      say("give_back " + name_ + ", " + what + ", change after 0.3 s", later - last_, "MiB");
    }
    last_ = later;
  }

  void say_word(const Child& reader) {
    say("give_back " + name_ + ", the survivor reads",
        obey(reader, 'r') == kWord ? "the right word" : "another word");
  }

 private:
  const Child& observer_;
  std::string name_;
  int64_t last_ = 0;
};

void share_memory(const Child& exporter, const Child& importer, bool vmm) {
  send_bytes(exporter.socket, vmm ? "v" : "h", 1);
  if (vmm) {
    const int descriptor = receive_descriptor(exporter.socket);
    read_answer(exporter);
    send_bytes(importer.socket, "i", 1);
    send_descriptor(importer.socket, descriptor);
    close(descriptor);
  } else {
    cudaIpcMemHandle_t handle;
    receive_bytes(exporter.socket, &handle, sizeof(handle));
    read_answer(exporter);
    send_bytes(importer.socket, "o", 1);
    send_bytes(importer.socket, &handle, sizeof(handle));
  }
  read_answer(importer);
}

void run_case(const Child& observer, bool vmm, bool exporter_dies) {
  Report report(observer, std::string(vmm ? "vmm" : "ipc") +
                              (exporter_dies ? " exporter killed" : " importer killed"));
  Child exporter = start_child();
  Child importer = start_child();
  obey(exporter, 'f');
  obey(importer, 'f');
  report.take_step("two contexts made");
  share_memory(exporter, importer, vmm);
  report.take_step("2048 MiB shared");
  Child& victim = exporter_dies ? exporter : importer;
  Child& survivor = exporter_dies ? importer : exporter;
  kill_child(victim);
  report.take_step("killed");
  report.say_word(survivor);
  obey(survivor, 'u');
  report.take_step("survivor gave it back");
  kill_child(survivor);
  report.take_step("survivor killed");
}

// The exporter dies while its descriptor is held by a process without CUDA.
void held_descriptor(const Child& observer) {
  Report report(observer, "vmm descriptor held by a process without CUDA");
  Child exporter = start_child();
  obey(exporter, 'f');
  report.take_step("context made");
  send_bytes(exporter.socket, "v", 1);
  const int descriptor = receive_descriptor(exporter.socket);
  read_answer(exporter);
  report.take_step("2048 MiB made");
  kill_child(exporter);
  report.take_step("exporter killed");
  Child importer = start_child();
  obey(importer, 'f');
  report.take_step("another context made");
  send_bytes(importer.socket, "i", 1);
  send_descriptor(importer.socket, descriptor);
  close(descriptor);
  read_answer(importer);
  report.say_word(importer);
  kill_child(importer);
  report.take_step("importer killed");
}

}  // namespace

int main() {
  signal(SIGPIPE, SIG_IGN);
  Child observer = start_child();
  obey(observer, 'f');
  for (bool vmm : {true, false}) {
    for (bool exporter_dies : {true, false}) run_case(observer, vmm, exporter_dies);
  }
  held_descriptor(observer);
  kill_child(observer);
  return 0;
}
