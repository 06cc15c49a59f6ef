// One collective as a rank sees it: what it brings, what it takes from whom, and where that goes.
//
// A plain value; what it points to belongs to the caller and stays until the operation has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace weft::comm_internal {

// Adds up `count` elements of all sources, in their order, and writes the sum to all targets. A
// target may be one of the sources.
using ReduceKernel = void (*)(std::span<const std::byte* const> sources,
                              std::span<std::byte* const> targets, size_t count);

struct Operation {
  enum class Sum {
    kNone,
    kHere,        // of everybody's elements [first, first + count), to `sum_to`
    kEverywhere,  // of all elements, to everybody's contribution
  };
  // Bytes [offset, offset + size) of what rank `from` brings. `share`: that rank says where they
  // begin (its `shares`), and must mean as many.
  struct Pull {
    int from = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
    std::byte* to = nullptr;
    bool share = false;
  };
  struct Part {
    std::byte* data = nullptr;
    uint64_t size = 0;
  };
  // Memory that the others can map: `arena` of this rank, from `offset` on.
  struct Resident {
    uint32_t arena = 0;
    uint64_t offset = 0;
  };

  // All ranks must say the same, and it stands in errors: "all_reduce(sum, float32)".
  std::string label;
  std::vector<int64_t> shape;  // must be the same as well; empty: need not be
  uint64_t fingerprint = 0;    // of whatever else must be the same
  int root = -1;

  std::vector<Part> parts;           // what this rank brings, one behind the other
  std::optional<Resident> resident;  // it is one part, and lies there

  std::vector<uint64_t> shares;  // bytes for each rank, one behind the other; empty: not said

  std::vector<Pull> pulls;  // none from this rank itself
  // Chooses the pulls once it is known how many bytes each rank brings (by rank). May be none.
  // Called with the group's lock held.
  std::function<absl::Status(std::span<const uint64_t> bytes, std::vector<Pull>& pulls)> plan;

  std::shared_ptr<const void> memory;  // keeps all of it until the operation has ended

  Sum sum = Sum::kNone;
  ReduceKernel kernel = nullptr;
  size_t element_bytes = 1;
  uint64_t first = 0;  // kHere
  uint64_t count = 0;
  std::byte* sum_to = nullptr;

  uint64_t bytes() const {
    uint64_t all = 0;
    for (const Part& part : parts) all += part.size;
    return all;
  }
  // Bytes [begin, end) of what the parts are together.
  void read(uint64_t begin, uint64_t end, std::byte* to) const;
  void write(const std::byte* from, uint64_t begin, uint64_t end) const;
};

}  // namespace weft::comm_internal
