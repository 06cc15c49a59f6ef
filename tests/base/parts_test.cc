#include "weft/base/parts.h"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

struct Leaf {
  int number = 0;
};
struct Inner {
  Leaf leaf;
  int ignored = -1;
  friend auto weft_fields(Inner& inner) { return std::tie(inner.leaf); }
};
struct Outer {
  Leaf first;
  std::vector<Inner> list;
  friend auto weft_fields(Outer& outer) { return std::tie(outer.first, outer.list); }
};
struct Recursive {
  Leaf leaf;
  std::vector<Recursive> children;
  friend auto weft_fields(Recursive& node) { return std::tie(node.leaf, node.children); }
};

// The numbers of all leaves in the value, in the order in which they are visited.
template <class T>
void gather(T& value, std::vector<int>& numbers) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, Leaf>) {
    numbers.push_back(value.number);
  } else {
    for_each_part(value, [&](auto& part) { gather(part, numbers); });
  }
}
template <class T>
std::vector<int> leaves(const T& value) {
  std::vector<int> numbers;
  gather(value, numbers);
  return numbers;
}
using Numbers = std::vector<int>;

TEST(Parts, OfAStructAreItsFieldsInOrder) {
  EXPECT_EQ(leaves(Outer{{1}, {Inner{{2}}, Inner{{3}}}}), (Numbers{1, 2, 3}));
  EXPECT_EQ(leaves(Recursive{{1}, {{{2}, {{{3}, {}}}}, {{4}, {}}}}), (Numbers{1, 2, 3, 4}));
}

TEST(Parts, OfContainersAreTheirElements) {
  EXPECT_EQ(leaves(std::vector<Leaf>{{1}, {2}}), (Numbers{1, 2}));
  EXPECT_EQ(leaves(std::array<Leaf, 2>{Leaf{1}, Leaf{2}}), (Numbers{1, 2}));
  EXPECT_EQ(leaves(std::map<std::string, Leaf>{{"a", {1}}, {"b", {2}}}), (Numbers{1, 2}));
  EXPECT_EQ(leaves(std::unordered_map<int, Leaf>{{7, {1}}}), (Numbers{1}));
  EXPECT_EQ(leaves(std::pair(Leaf{1}, std::tuple(5, Leaf{2}))), (Numbers{1, 2}));
  EXPECT_EQ(leaves(std::tuple()), Numbers());
}

TEST(Parts, OfOptionalsAndVariantsAreWhatTheyHold) {
  EXPECT_EQ(leaves(std::optional(Leaf{1})), (Numbers{1}));
  EXPECT_EQ(leaves(std::optional<Leaf>()), Numbers());
  using Either = std::variant<std::monostate, std::vector<Leaf>, Leaf>;
  EXPECT_EQ(leaves(Either(Leaf{1})), (Numbers{1}));
  EXPECT_EQ(leaves(Either(std::vector<Leaf>{{1}, {2}})), (Numbers{1, 2}));
  EXPECT_EQ(leaves(Either()), Numbers());
}

TEST(Parts, AreNeitherNumbersNorWhatPointersPointAt) {
  EXPECT_EQ(leaves(std::tuple(1, 2.5, std::string("text"), std::vector<bool>{true})), Numbers());
  const auto count = [](const auto& value) {
    int parts = 0;
    for_each_part(value, [&](auto&) { ++parts; });
    return parts;
  };
  EXPECT_EQ(count(std::string("text")), 0);
  EXPECT_EQ(count(std::vector<bool>{true, false}), 0);
  EXPECT_EQ(count(std::make_shared<Leaf>()), 0);
  EXPECT_EQ(count(std::vector<std::string>{"a", "b"}), 2);
  static_assert(!kHasParts<int> && !kHasParts<Leaf> && !kHasParts<std::shared_ptr<Leaf>>);
}

TEST(Parts, CanBeChangedUnlessTheValueIsConstant) {
  Outer outer{{1}, {Inner{{2}}}};
  for_each_part(outer, [](auto& part) {
    if constexpr (requires { part.number; }) part.number = 10;
    if constexpr (requires { part.clear(); }) part.clear();
  });
  EXPECT_EQ(leaves(outer), (Numbers{10}));
  const Outer constant;
  for_each_part(constant, [](auto& part) {
    static_assert(std::is_const_v<std::remove_reference_t<decltype(part)>>);
  });
  std::map<int, Leaf> map{{1, {2}}};
  for_each_part(map, [](auto& entry) { entry.second.number = 3; });
  EXPECT_EQ(map[1].number, 3);
}

}  // namespace
}  // namespace weft
