// Visits the parts of a value: the fields of a struct, the elements of a container, and the content
// of an optional or a variant.
//
//   struct Batch { at::Tensor x; std::vector<int64_t> labels; };
//   inline auto weft_fields(Batch& b) { return std::tie(b.x, b.labels); }
//
//   weft::for_each_part(batch, [](auto& part) { ... });  // x, then labels
//
// It visits only direct parts. A visitor that wants the parts of parts calls for_each_part again.
// It follows no pointers.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace weft {

// Structs with a function weft_fields, which argument-dependent lookup finds. It returns a tuple of
// references to the fields.
template <class T>
concept HasFields = std::is_class_v<T> && requires(T& value) {
  weft_fields(value);
};
template <HasFields T>
using FieldsOf = decltype(weft_fields(std::declval<T&>()));

// Containers, strings and other lists that know their size.
template <class T>
concept HasElements = !HasFields<T> && requires(const T& value) {
  value.begin(), value.end(), value.size();
  *value.begin();
};
template <HasElements T>
using ElementOf = std::remove_cvref_t<decltype(*std::declval<const T&>().begin())>;

namespace base_internal {

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept OptionalLike = requires(const T& value) {
  value.has_value();
  *value;
};
template <class T>
inline constexpr bool kVariant = false;
template <class... T>
inline constexpr bool kVariant<std::variant<T...>> = true;

// A part of a constant value is constant too.
template <class Whole, class Part>
auto& part_of(Part& part) {
  if constexpr (std::is_const_v<Whole>) {
    return std::as_const(part);
  } else {
    return part;
  }
}

}  // namespace base_internal

// Whether for_each_part knows how to take values of this type apart.
template <class T>
inline constexpr bool kHasParts = HasFields<T> || HasElements<T> || base_internal::TupleLike<T> ||
                                  base_internal::OptionalLike<T> || base_internal::kVariant<T>;

// Calls `visit` with each part of the value, in order, as an lvalue. Elements that are numbers,
// enums or pointers are not visited, so a list of numbers costs nothing. The keys of a map are
// constant: its parts are pairs. Values of other types have no parts.
template <class T, class Visit>
void for_each_part(T& value, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (HasFields<Plain>) {
    // const_cast, because a struct has one weft_fields for reading and writing.
    auto fields = weft_fields(const_cast<Plain&>(value));
    std::apply([&](auto&... field) { (visit(base_internal::part_of<T>(field)), ...); }, fields);
  } else if constexpr (HasElements<Plain>) {
    if constexpr (!std::is_scalar_v<ElementOf<Plain>>) {
      for (auto&& element : value) visit(element);
    }
  } else if constexpr (base_internal::TupleLike<Plain>) {
    std::apply([&](auto&... element) { (visit(element), ...); }, value);
  } else if constexpr (base_internal::kVariant<Plain>) {
    if (!value.valueless_by_exception()) std::visit([&](auto& held) { visit(held); }, value);
  } else if constexpr (base_internal::OptionalLike<Plain>) {
    if (value.has_value()) visit(*value);
  }
}

}  // namespace weft
