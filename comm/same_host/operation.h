// Describes one collective as a rank sees it: its contribution, what it takes from other ranks, and
// where the results go.
//
// Thread safety: none. It is a plain value.
// Lifetime: the memory that it points to belongs to the caller, and must stay until the operation
// is done.
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

// Reduces `count` elements of all sources, in their order, and writes the result to all targets. A
// target may be one of the sources.
using ReduceKernel = void (*)(std::span<const std::byte* const> sources,
                              std::span<std::byte* const> targets, size_t count);

struct Operation {
  enum class Sum {
    kNone,
    kHere,        // reduces elements [first, first + count) of all ranks into `sum_to`
    kEverywhere,  // reduces all elements into the contribution of every rank
  };
  // Takes bytes [offset, offset + size) of the contribution of rank `from`. If `share` is true,
  // that rank says where they begin (its `shares`). It must then name the same size.
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
  // Memory that the other ranks can map: `arena` of this rank, from `offset` on.
  struct Resident {
    uint32_t arena = 0;
    uint64_t offset = 0;
  };

  // Must be the same on all ranks, and is used in errors: "all_reduce(sum, float32)".
  std::string label;
  std::vector<int64_t> shape;  // must be equal on all ranks; left empty if it may differ
  uint64_t fingerprint = 0;    // hash of whatever else must be equal; 0: nothing
  int root = -1;

  std::vector<Part> parts;           // this rank's contribution, one part behind the other
  std::optional<Resident> resident;  // where the contribution lies, if it is one part in an arena

  std::vector<uint64_t> shares;  // bytes for each rank, one behind the other; empty: not announced

  std::vector<Pull> pulls;  // none from this rank itself
  // Chooses the pulls when the size of each contribution is known (`bytes`, by rank). May be null.
  // Called with the group's lock held.
  std::function<absl::Status(std::span<const uint64_t> bytes, std::vector<Pull>& pulls)> plan;

  std::shared_ptr<const void> memory;  // keeps all of this until the operation is done

  Sum sum = Sum::kNone;
  ReduceKernel kernel = nullptr;
  size_t element_bytes = 1;
  uint64_t first = 0;  // this and the next two: only for kHere
  uint64_t count = 0;
  std::byte* sum_to = nullptr;

  uint64_t bytes() const {
    uint64_t all = 0;
    for (const Part& part : parts) all += part.size;
    return all;
  }
  // Copy bytes [begin, end) of all parts, taken as one sequence, to or from other memory.
  void read(uint64_t begin, uint64_t end, std::byte* to) const;
  void write(const std::byte* from, uint64_t begin, uint64_t end) const;
};

}  // namespace weft::comm_internal
