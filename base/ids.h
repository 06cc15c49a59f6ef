// Defines a distinct id type for each kind of object that workers name to each other. All are
// hashable and printable.
//
// Thread safety: plain values.
// Protocol: proto/weft.proto defines how these numbers travel on the wire.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

// One incarnation of one worker. `index` identifies the worker in the group; in a static group it
// is the rank. `incarnation` counts the incarnations of that index, from 1. A restarted worker has
// a new WorkerId, so no message to an earlier incarnation reaches a later one.
struct WorkerId {
  uint32_t index = 0;
  uint32_t incarnation = 0;  // 0: no worker

  static constexpr WorkerId from_bits(uint64_t bits) {
    return {static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits)};
  }
  constexpr uint64_t bits() const { return (uint64_t{index} << 32) | incarnation; }
  constexpr bool valid() const { return incarnation != 0; }
  std::string to_string() const { return absl::StrCat("w", index, ".", incarnation); }
  friend constexpr auto operator<=>(const WorkerId&, const WorkerId&) = default;
};

// A number that is unique together with the incarnation that created it.
template <class Tag>
struct ScopedId {
  WorkerId creator;
  uint64_t number = 0;  // 0: none

  constexpr bool valid() const { return creator.valid() && number != 0; }
  std::string to_string() const {
    return absl::StrCat(Tag::kPrefix, "(", creator.to_string(), ",", number, ")");
  }
  friend constexpr auto operator<=>(const ScopedId&, const ScopedId&) = default;
};

// A number that is unique among those of its kind within one incarnation.
template <class Tag>
struct LocalId {
  uint64_t number = 0;  // 0: none

  constexpr bool valid() const { return number != 0; }
  std::string to_string() const { return absl::StrCat(Tag::kPrefix, number); }
  friend constexpr auto operator<=>(const LocalId&, const LocalId&) = default;
};

namespace base_internal {
struct RRefTag {
  static constexpr const char* kPrefix = "rref";
};
struct ForkTag {
  static constexpr const char* kPrefix = "fork";
};
struct ContextTag {
  static constexpr const char* kPrefix = "context";
};
struct SendTag {
  static constexpr const char* kPrefix = "send";
};
struct CallTag {
  static constexpr const char* kPrefix = "call";
};
struct ChainTag {
  static constexpr const char* kPrefix = "chain";
};
struct OptimizerTag {
  static constexpr const char* kPrefix = "optimizer";
};
}  // namespace base_internal

using RRefId = ScopedId<base_internal::RRefTag>;        // one remote value, named by its requester
using ForkId = ScopedId<base_internal::ForkTag>;        // one worker's hold on an RRef
using ContextId = ScopedId<base_internal::ContextTag>;  // one distributed autograd context
using SendId = ScopedId<base_internal::SendTag>;        // one recorded transfer of tensors
using ChainId = ScopedId<base_internal::ChainTag>;      // one call and all calls nested in it
using OptimizerId = ScopedId<base_internal::OptimizerTag>;  // one optimizer instance
using CallId = LocalId<base_internal::CallTag>;             // one call of one caller

template <class Tag>
std::ostream& operator<<(std::ostream& out, const ScopedId<Tag>& id) {
  return out << id.to_string();
}
template <class Tag>
std::ostream& operator<<(std::ostream& out, const LocalId<Tag>& id) {
  return out << id.to_string();
}
inline std::ostream& operator<<(std::ostream& out, const WorkerId& id) {
  return out << id.to_string();
}

template <class H>
H AbslHashValue(H h, const WorkerId& id) {
  return H::combine(std::move(h), id.bits());
}
template <class H, class Tag>
H AbslHashValue(H h, const ScopedId<Tag>& id) {
  return H::combine(std::move(h), id.creator.bits(), id.number);
}
template <class H, class Tag>
H AbslHashValue(H h, const LocalId<Tag>& id) {
  return H::combine(std::move(h), id.number);
}

}  // namespace weft

template <>
struct std::hash<weft::WorkerId> {
  size_t operator()(const weft::WorkerId& id) const noexcept {
    return std::hash<uint64_t>()(id.bits() * 0x9E3779B97F4A7C15ull);
  }
};
template <class Tag>
struct std::hash<weft::ScopedId<Tag>> {
  size_t operator()(const weft::ScopedId<Tag>& id) const noexcept {
    return std::hash<uint64_t>()(id.creator.bits() * 0x9E3779B97F4A7C15ull ^ id.number);
  }
};
template <class Tag>
struct std::hash<weft::LocalId<Tag>> {
  size_t operator()(const weft::LocalId<Tag>& id) const noexcept {
    return std::hash<uint64_t>()(id.number * 0x9E3779B97F4A7C15ull);
  }
};
