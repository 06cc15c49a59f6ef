// Makes one visitor out of lambdas, for std::visit over the actions of a pure core.
//
// The lambdas name the kinds that they take. So a driver that forgets a new kind does not compile.
// A lambda for several kinds lists them: `[](OneOf<Feed, Discover> auto& action) { ... }`.
//
// Thread safety: that of the lambdas.
#pragma once

#include <concepts>
#include <type_traits>

namespace weft {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

// T, with or without const, is one of these types.
template <class T, class... Kinds>
concept OneOf = (std::same_as<std::remove_const_t<T>, Kinds> || ...);

}  // namespace weft
