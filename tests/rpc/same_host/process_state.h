// Counts what this process has of the system.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <dirent.h>
#include <fstream>
#include <string>

namespace weft::testing {

inline size_t open_descriptors() {
  size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// The memory of Weft that this process shares.
struct SharedMappings {
  size_t count = 0;
  size_t bytes = 0;
};
inline SharedMappings all_shared_mappings() {
  SharedMappings all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:weft-") == std::string::npos) continue;
    size_t end = 0;
    const size_t from = std::stoull(line, &end, 16);
    all.bytes += std::stoull(line.substr(end + 1), nullptr, 16) - from;
    ++all.count;
  }
  return all;
}
inline size_t shared_mappings() { return all_shared_mappings().count; }
inline size_t shared_bytes() { return all_shared_mappings().bytes; }

}  // namespace weft::testing
