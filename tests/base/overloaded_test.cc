// The visitor of a variant's kinds: it picks the right lambda, and a forgotten kind is an error.
#include "weft/base/overloaded.h"

#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <gtest/gtest.h>

namespace weft {
namespace {

struct Send {
  std::string text;
};
struct Stop {};
struct Drop {};

TEST(OverloadedTest, RunsTheLambdaOfTheKindThatTheVariantHolds) {
  std::string done;
  const Overloaded visitor{
      [&](Send& send) { done += std::move(send.text); },
      [&](OneOf<Stop, Drop> auto&) { done += ", the end"; },
  };
  std::variant<Send, Stop, Drop> action = Send{"sent"};
  std::visit(visitor, action);
  action = Drop{};
  std::visit(visitor, action);
  EXPECT_EQ(done, "sent, the end");
}

TEST(OverloadedTest, AKindWithoutALambdaDoesNotCompile) {
  const Overloaded visitor{[](const Send&) {}, [](const OneOf<Stop> auto&) {}};
  using Visitor = decltype(visitor);
  static_assert(std::is_invocable_v<Visitor, Send&>);
  static_assert(std::is_invocable_v<Visitor, const Stop&>);
  static_assert(!std::is_invocable_v<Visitor, Drop&>);
  static_assert(!std::is_invocable_v<Visitor, const Drop&>);
}

}  // namespace
}  // namespace weft
