// What weft_bench does when the driver has started it as a process of a contestant.
//
// Thread safety: runs on the calling thread.
// Blocking: until the driver tells it to quit or is gone.
#pragma once

#include <string>

namespace weft::bench {

// The child names of contestants whose shown name other contestants have too.
inline constexpr char kPipelineChild[] = "weft pipeline";
inline constexpr char kWorkersChild[] = "workers of ";  // and then the mode

struct ChildOptions {
  std::string name;
  std::string role;  // server, client, rank, leader or member
  int processor = -1;
  int rank = 0;
  int ranks = 2;
  int spin_us = 0;
};

// Returns the exit status, if the process does not exit before.
int run_child(const ChildOptions& options);

}  // namespace weft::bench
