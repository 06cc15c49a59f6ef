// Loads libc10_cuda.so into a program without CUDA and tells what comes with it.
//
// Prints whether it loads, whether libcuda comes with it, the cost, and whether any call makes a
// context. Usage: c10_load FOLDER, where the folder is `lib` of the torch wheel.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <dlfcn.h>
#include <fstream>
#include <string>

namespace {

bool mapped(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

double resident_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

void say(const std::string& name, const std::string& value) {
  std::printf("probe c10_load %s: %s\n", name.c_str(), value.c_str());
  std::fflush(stdout);
}

// Looks without loading or initialising anything.
std::string context_of_device_0() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return "no libcuda in the process";
  using GetState = int (*)(int, unsigned*, int*);
  const auto get_state = reinterpret_cast<GetState>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 0;
  const int result = get_state(0, &flags, &active);
  if (result != 0)
    return "libcuda is there, cuDevicePrimaryCtxGetState says " + std::to_string(result);
  return active != 0 ? "a context" : "libcuda is there, no context";
}

template <typename Call>
void step(const std::string& name, Call call) {
  const double resident = resident_mib();
  const auto begin = std::chrono::steady_clock::now();
  const std::string answer = call();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  say(name, answer + ", " + std::to_string(took.count()) + " ms, " +
                std::to_string(resident_mib() - resident) + " MiB of resident memory, libcuda " +
                (mapped("libcuda.so") ? "mapped" : "not mapped") + ", " + context_of_device_0());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string folder = argv[1];
  void* library = nullptr;
  step("dlopen of libc10.so", [&]() -> std::string {
    return dlopen((folder + "/libc10.so").c_str(), RTLD_NOW | RTLD_GLOBAL) ? "ok" : dlerror();
  });
  step("dlopen of libc10_cuda.so", [&]() -> std::string {
    library = dlopen((folder + "/libc10_cuda.so").c_str(), RTLD_NOW);
    return library != nullptr ? "ok" : dlerror();
  });
  if (library == nullptr) return 1;
  const auto count = reinterpret_cast<int8_t (*)()>(dlsym(library, "_ZN3c104cuda12device_countEv"));
  const auto current =
      reinterpret_cast<int8_t (*)()>(dlsym(library, "_ZN3c104cuda14current_deviceEv"));
  if (count == nullptr || current == nullptr) return 1;
  step("c10::cuda::device_count()", [&] { return std::to_string(count()); });
  if (count() > 0) {
    step("c10::cuda::current_device()", [&] { return std::to_string(current()); });
  }
  return 0;
}
