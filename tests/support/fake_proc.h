// A folder that stands for /proc, so that a test decides what the kernel says of processes and
// their threads.
//
// Thread safety: none.
// Lifetime: the folder exists as long as this object. Its name holds the process id, so one process
// has one FakeProc at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/membership/processor_waits.h"

namespace weft::testing {

class FakeProc {
 public:
  // Process 7 is the one that reads the folder. Process 8 has the thread 81, which serves
  // connections.
  FakeProc() {
    std::filesystem::remove_all(root_);
    write("sys/kernel/random/boot_id", "boot\n");
    std::filesystem::create_directories(absl::StrCat(root_, "/self/ns"));
    std::filesystem::create_symlink("pid:[1]", absl::StrCat(root_, "/self/ns/pid"));
    write("self/stat", stat(7, 'R', 70));
    write("8/stat", stat(8, 'S', 80));
    thread(81, "weft serving", 'S', std::chrono::milliseconds(1));
  }
  ~FakeProc() { remove(); }
  FakeProc(const FakeProc&) = delete;
  FakeProc& operator=(const FakeProc&) = delete;

  const std::string& root() const { return root_; }
  rpc_internal::HostProcess peer() const { return {"boot pid:[1]", 8, 80}; }
  void remove() { std::filesystem::remove_all(root_); }

  // Writes a thread of process 8. `state` is the letter in its `stat`; `waited` is how long it has
  // waited for processors so far.
  void thread(int id, const std::string& name, char state, Nanoseconds waited) {
    const std::string folder = absl::StrCat("8/task/", id);
    write(folder + "/comm", name + "\n");
    write(folder + "/stat", stat(id, state, 80));
    write(folder + "/schedstat",
          absl::StrCat("500 ", waited.count(), " ", waited.count() / 1000, "\n"));
  }

 private:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = absl::StrCat(root_, "/", file);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  static std::string stat(int pid, char state, int started) {
    return absl::StrCat(pid, " (a ) name) ", std::string(1, state),
                        " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 ", started, " 20 21\n");
  }

  const std::string root_ =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/weft_fake_proc_", ::getpid());
};

}  // namespace weft::testing
