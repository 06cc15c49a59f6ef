// Measures the cost of a CUDA context: time, resident memory and device memory. It also measures
// what a process without a GPU pays for asking. Each case runs in a child of its own.
#include <fstream>
#include <functional>

#include "common.h"

using namespace probe;

namespace {

double status_mib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atof(line.c_str() + key.size() + 1) / 1024;
  }
  return 0;
}

int thread_count() { return static_cast<int>(status_mib("Threads") * 1024); }

double free_mib() {
  size_t free_bytes = 0;
  size_t total = 0;
  CHECK_CU(cuMemGetInfo(&free_bytes, &total));
  return free_bytes / 1048576.0;
}

template <typename Body>
void run_child(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
}

void take_step(const std::string& name, const std::string& step,
               const std::function<void()>& call) {
  const double rss = status_mib("VmRSS");
  const double begin = now_us();
  call();
  say("context " + name + ", " + step, (now_us() - begin) / 1e3, "ms");
  say("context " + name + ", " + step + ", resident memory added", status_mib("VmRSS") - rss,
      "MiB");
}

void time_context(const std::string& name) {
  CUcontext context;
  take_step(name, "cuInit", [] { CHECK_CU(cuInit(0)); });
  take_step(name, "primary context", [&] {
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_CU(cuCtxSetCurrent(context));
  });
  take_step(name, "first cudaMalloc and copy", [] {
    void* at = nullptr;
    uint32_t word = 1;
    CHECK_CU(cudaMalloc(&at, 4));
    CHECK_CU(cudaMemcpy(at, &word, 4, cudaMemcpyHostToDevice));
  });
  say("context " + name + ", threads of the process", thread_count(), "");
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) {
    make_context();
    must(write(3, "r", 1) == 1, "write");
    char byte = 0;
    return static_cast<int>(read(4, &byte, 1));
  }
  run_child([] { time_context("first process"); });
  run_child([] {
    time_context("second process");
    const double before = free_mib();
    int ready[2];
    int stop[2];
    must(pipe(ready) == 0 && pipe(stop) == 0, "pipe");
    char byte = 0;
    // A process that has CUDA must not fork one that uses CUDA. Hence the program starts itself.
    const pid_t other = fork();
    if (other == 0) {
      dup2(ready[1], 3);
      dup2(stop[0], 4);
      execl("/proc/self/exe", "context", "hold", nullptr);
      _exit(1);
    }
    close(stop[0]);
    must(read(ready[0], &byte, 1) == 1, "the other process is ready");
    say("context device memory of one more process", before - free_mib(), "MiB");
    close(stop[1]);
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
    say("context device memory still missing after it was killed", before - free_mib(), "MiB");
  });
  run_child([] {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    take_step("no visible device", "cuInit",
              [] { say("context no visible device, cuInit", text_of(cuInit(0))); });
  });
  return 0;
}
