// One lending of a block of shared memory. The descriptor of a lent payload carries it from the
// block's owner to the borrower, and the return carries it back.
//
// Thread safety: a plain value.
// Protocol: docs/data_plane.md, "Generations".
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace weft {

struct Lending {
  uint32_t segment = 0;     // of the owner's arena
  uint32_t generation = 0;  // of this lending, from 1, so that no return counts twice
  uint64_t offset = 0;      // of a byte of the block, in the segment

  std::string to_string() const;
  friend constexpr auto operator<=>(const Lending&, const Lending&) = default;
};

}  // namespace weft
