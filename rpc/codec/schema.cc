#include "weft/rpc/codec/schema.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace weft {
namespace rpc_internal {

std::string wire_name(std::string_view spelling) {
  constexpr std::array<std::string_view, 2> kAnonymous = {"{anonymous}::",
                                                          "(anonymous namespace)::"};
  std::string name(spelling);
  if (!name.empty() && name.front() == '&') name.erase(0, 1);
  for (std::string_view anonymous : kAnonymous) {
    for (size_t at = name.find(anonymous); at != std::string::npos; at = name.find(anonymous)) {
      name.erase(at, anonymous.size());
    }
  }
  return name;
}

std::string_view last_component(std::string_view name) {
  int depth = 0;  // of template arguments, whose own "::" must not count
  for (size_t i = name.size(); i > 1; --i) {
    const char c = name[i - 1];
    if (c == '>') ++depth;
    if (c == '<') --depth;
    if (depth == 0 && c == ':') return name.substr(i);
  }
  return name;
}

Signature make_signature(Describe describe) {
  SchemaBuilder structure(SchemaBuilder::Spelling::kStructure);
  describe(structure);
  SchemaBuilder names(SchemaBuilder::Spelling::kNames);
  describe(names);
  return {names.take(), hash64(structure.take())};
}

}  // namespace rpc_internal

bool SchemaBuilder::open_struct(std::string_view spelling) {
  const auto found = std::find(open_.rbegin(), open_.rend(), spelling);
  const std::string name = rpc_internal::wire_name(spelling);
  if (found != open_.rend()) {
    text(absl::StrCat("^", found - open_.rbegin()), name);
    return false;
  }
  open_.push_back(spelling);
  text("{", name + "{");
  return true;
}

void SchemaBuilder::close_struct() {
  open_.pop_back();
  text("}");
}

}  // namespace weft
