#include "weft/comm/same_host/operation.h"

#include <algorithm>
#include <cstring>

namespace weft::comm_internal {

void Operation::read(uint64_t begin, uint64_t end, std::byte* to) const {
  uint64_t at = 0;
  for (const Part& part : parts) {
    const uint64_t from = std::max(begin, at), until = std::min(end, at + part.size);
    if (from < until) {
      std::memcpy(to, part.data + (from - at), until - from);
      to += until - from;
    }
    at += part.size;
  }
}

void Operation::write(const std::byte* from, uint64_t begin, uint64_t end) const {
  uint64_t at = 0;
  for (const Part& part : parts) {
    const uint64_t first = std::max(begin, at), until = std::min(end, at + part.size);
    if (first < until) {
      std::memcpy(part.data + (first - at), from, until - first);
      from += until - first;
    }
    at += part.size;
  }
}

}  // namespace weft::comm_internal
