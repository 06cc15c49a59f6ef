#include "weft/rpc/class.h"

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {

std::string constructor_name(std::string_view class_spelling, const Signature& signature) {
  return wire_name(class_spelling) + signature.text.substr(0, signature.text.rfind(" -> "));
}

ClassLister::ClassLister(std::string_view spelling, const TypeInfo& type, const char* file,
                         int line, std::vector<Declaration>& declarations)
    : name_(wire_name(spelling)),
      class_type_(type),
      file_(file),
      line_(line),
      declarations_(declarations) {}

Declaration& ClassLister::add(std::string name, const CallableType& type) {
  Declaration& declaration = declarations_.emplace_back();
  declaration.name = std::move(name);
  declaration.type = &type;
  declaration.file = file_;
  declaration.line = line_;
  declaration.class_type = &class_type_;
  declaration.options = options_;
  return declaration;
}

void ClassLister::method(std::string_view spelling, const CallableType& type,
                         const CallableKey& key) {
  const std::string method = wire_name(spelling);
  const std::string_view last = last_component(method);
  add(absl::StrCat(name_, "::", absl_view(last)), type).callable = key;
}

void ClassLister::constructor(std::string name, const CallableType& type) {
  // Callers find constructors by name. The key only distinguishes the entries of a registry.
  const uint64_t key = hash64(name);
  add(std::move(name), type).callable.type = key;
}

}  // namespace weft::rpc_internal
