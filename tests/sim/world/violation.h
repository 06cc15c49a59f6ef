// The first invariant that a run breaks.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>
#include <string>

namespace weft::sim {

struct Violation {
  std::string invariant;  // empty: none
  std::string text;
  uint64_t event = 0;
};

}  // namespace weft::sim
