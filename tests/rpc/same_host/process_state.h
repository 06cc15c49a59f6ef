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

// Of memory that Weft's processes share.
inline size_t shared_mappings() {
  size_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:weft-") != std::string::npos) ++count;
  }
  return count;
}

// The bytes of memory of Weft that this process shares, each mapping for itself.
inline size_t shared_bytes() {
  size_t bytes = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:weft-") == std::string::npos) continue;
    size_t end = 0;
    const size_t from = std::stoull(line, &end, 16);
    bytes += std::stoull(line.substr(end + 1), nullptr, 16) - from;
  }
  return bytes;
}

}  // namespace weft::testing
