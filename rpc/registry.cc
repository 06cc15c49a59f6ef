#include "weft/rpc/registry.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/security/rights/access_policy.h"

namespace weft {
namespace rpc_internal {
namespace {

// The catalogue: a list of registrations. It is constant-initialised, because registrations of
// other files may run before the dynamic initialisation of this file.
constinit std::atomic<const Registration*> newest_registration{nullptr};

}  // namespace

Registration::Registration(std::string_view spelling, void (*function)(), const CallableType& type,
                           FunctionOptions options, const char* file, int line)
    : spelling_(spelling),
      function_(function),
      type_(&type),
      options_(options),
      file_(file),
      line_(line) {
  link();
}

Registration::Registration(List list, const char* file, int line)
    : list_(list), file_(file), line_(line) {
  link();
}

void Registration::link() {
  next_ = newest_registration.load(std::memory_order_relaxed);
  while (!newest_registration.compare_exchange_weak(next_, this, std::memory_order_release,
                                                    std::memory_order_relaxed)) {
  }
}

std::vector<Declaration> Registration::catalogue() {
  std::vector<Declaration> declarations;
  for (const Registration* each = newest_registration.load(std::memory_order_acquire);
       each != nullptr; each = each->next_) {
    if (each->list_ != nullptr) {
      each->list_(each->file_, each->line_, declarations);
    } else {
      Declaration declaration;
      declaration.name = wire_name(each->spelling_);
      declaration.type = each->type_;
      declaration.callable = function_key(each->function_);
      declaration.options = each->options_;
      declaration.file = each->file_;
      declaration.line = each->line_;
      declarations.push_back(std::move(declaration));
    }
  }
  return declarations;
}

CallableKey function_key(void (*function)()) {
  CallableKey key;
  std::memcpy(key.bytes.data(), &function, sizeof(function));
  return key;
}

CallableKey object_key(const void* object) {
  CallableKey key;
  std::memcpy(key.bytes.data(), &object, sizeof(object));
  key.type = hash64("function object");
  return key;
}

}  // namespace rpc_internal

namespace {

using rpc_internal::Declaration;

std::string place(std::string_view file, int line) {
  return absl::StrCat(absl_view(file), ":", line);
}

// Gathers a text for each different problem, so that one error names all of them.
class Problems {
 public:
  void same_name(const FunctionEntry& first, const FunctionEntry& second) {
    add(absl::StrCat("two functions are registered as '", first.name,
                     "': ", place(first.file, first.line), " and ", place(second.file, second.line),
                     "; give one another name with WEFT_REGISTER_FUNCTION_AS"));
  }
  void two_names(const FunctionEntry& first, const FunctionEntry& second) {
    add(absl::StrCat(
        "one function is registered as '", first.name, "' (", place(first.file, first.line),
        ") and as '", second.name, "' (", place(second.file, second.line),
        "); if these are two functions, the linker folded them: do not use --icf=all"));
  }
  void two_rights(const FunctionEntry& first, const FunctionEntry& second) {
    const auto said = [](const FunctionEntry& entry) {
      return entry.tag.has_value() ? absl::StrCat("for ", entry.tag->to_string())
                                   : std::string("without an Access");
    };
    add(absl::StrCat("'", first.name, "' is registered ", said(first), " (",
                     place(first.file, first.line), ") and ", said(second), " (",
                     place(second.file, second.line), ")"));
  }
  void hash_collision(const FunctionEntry& first, const FunctionEntry& second) {
    add(absl::StrCat("the names '", first.name, "' (", place(first.file, first.line), ") and '",
                     second.name, "' (", place(second.file, second.line),
                     ") have the same 64-bit hash: rename one"));
  }
  void bad_name(const FunctionEntry& entry) {
    add(absl::StrCat("'", entry.name, "' (", place(entry.file, entry.line),
                     ") is no name that all compilers agree on: "
                     "use WEFT_REGISTER_FUNCTION_AS(\"name\", ...)"));
  }
  absl::Status status() const {
    if (found_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("registration failed: ", absl::StrJoin(found_, "\n")));
  }

 private:
  void add(std::string problem) {
    if (std::find(found_.begin(), found_.end(), problem) == found_.end()) {
      found_.push_back(std::move(problem));
    }
  }
  std::vector<std::string> found_;
};

std::unique_ptr<FunctionEntry> make_entry(const Declaration& declaration) {
  auto entry = std::make_unique<FunctionEntry>();
  entry->name = declaration.name;
  entry->id = hash64(entry->name);
  entry->signature = rpc_internal::make_signature(declaration.type->describe);
  entry->kind = declaration.type->kind;
  entry->file = declaration.file;
  entry->line = declaration.line;
  entry->class_type = declaration.class_type;
  entry->run_inline = declaration.options.run_inline;
  if (declaration.options.has_access) {
    entry->tag = AccessRule(declaration.options.access);
    entry->access = *entry->tag;
  }
  entry->serial =
      entry->kind == rpc_internal::FunctionKind::kMethod && declaration.class_type->serial;
  entry->invoke = declaration.type->invoke;
  entry->callable = declaration.callable;
  entry->state = declaration.state;
  return entry;
}

// If several methods of one class have the same name, adds their parameters to the name, as
// constructors have them.
void name_overloads(std::vector<Declaration>& declarations) {
  std::map<std::string, std::vector<Declaration*>> methods;
  for (Declaration& each : declarations) {
    if (each.type->kind == rpc_internal::FunctionKind::kMethod) methods[each.name].push_back(&each);
  }
  for (auto& method : methods) {
    std::vector<Declaration*>& same = method.second;
    const bool overloaded = std::any_of(same.begin(), same.end(), [&](const Declaration* each) {
      return each->callable != same.front()->callable;
    });
    if (!overloaded) continue;
    for (Declaration* each : same) {
      const std::string text = rpc_internal::make_signature(each->type->describe).text;
      each->name += text.substr(0, text.rfind(" -> "));
    }
  }
}

absl::Status apply_policy(const AccessPolicy& policy, const std::vector<FunctionEntry*>& entries) {
  std::vector<std::string_view> names;
  for (const FunctionEntry* entry : entries) names.push_back(entry->name);
  WEFT_RETURN_IF_ERROR(policy.check_rules(names));
  for (FunctionEntry* entry : entries) {
    WEFT_ASSIGN_OR_RETURN(entry->access, policy.rule_for(entry->name, entry->tag));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Registry>> RegistryBuilder::build() const {
  std::vector<Declaration> declarations = rpc_internal::Registration::catalogue();
  declarations.insert(declarations.end(), declarations_.begin(), declarations_.end());
  name_overloads(declarations);
  // Sorted, so that errors and listings do not depend on the linker's order of the files.
  std::stable_sort(declarations.begin(), declarations.end(),
                   [](const Declaration& a, const Declaration& b) {
                     const std::string_view in_a = a.file, in_b = b.file;
                     return std::tie(a.name, in_a, a.line) < std::tie(b.name, in_b, b.line);
                   });

  auto registry = std::make_shared<Registry>();
  Problems problems;
  std::vector<FunctionEntry*> made;
  for (const Declaration& declaration : declarations) {
    std::unique_ptr<FunctionEntry> entry = make_entry(declaration);
    if (entry->name.empty()) problems.bad_name(*entry);
    const auto [by_id, new_id] = registry->by_id_.try_emplace(entry->id, entry.get());
    if (!new_id) {
      const FunctionEntry& first = *by_id->second;
      if (first.name != entry->name) {
        problems.hash_collision(first, *entry);
      } else if (first.callable != entry->callable) {
        problems.same_name(first, *entry);
      } else if (first.tag != entry->tag) {
        problems.two_rights(first, *entry);
      }
      continue;  // without a problem, several files have registered one function
    }
    const auto [by_callable, new_callable] =
        registry->by_callable_.try_emplace(entry->callable, entry.get());
    if (!new_callable) problems.two_names(*by_callable->second, *entry);
    made.push_back(entry.get());
    registry->entries_.push_back(std::move(entry));
  }
  WEFT_RETURN_IF_ERROR(problems.status());
  if (policy_ != nullptr) WEFT_RETURN_IF_ERROR(apply_policy(*policy_, made));
  return std::shared_ptr<const Registry>(std::move(registry));
}

absl::Status FunctionEntry::check_caller(const CallContext& call, const RpcRuntime& callee) const {
  if (call.caller() == callee.id() || access.allows(call.caller_role())) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "worker '", call.caller_name(), "' with role '", call.caller_role(), "' may not call '", name,
      "' on worker '", callee.name(), "', which is for ", access.to_string()));
}

absl::Status FunctionEntry::check_caller_here(const RpcRuntime& callee) const {
  const std::shared_ptr<CallContext>& call = CallScope::current().call_context;
  return call == nullptr ? absl::OkStatus() : with_ran(check_caller(*call, callee), Ran::kNo);
}

const FunctionEntry* Registry::find(uint64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

absl::StatusOr<const FunctionEntry*> Registry::find_for_call(const FunctionKey& key,
                                                             std::string_view worker) const {
  const absl::string_view where(worker.data(), worker.size());
  const FunctionEntry* entry = find(key.id);
  if (entry == nullptr) {
    const std::string what = key.name.empty()
                                 ? absl::StrCat("with id ", absl::Hex(key.id, absl::kZeroPad16))
                                 : absl::StrCat("'", std::string(key.name), "'");
    return with_ran(
        absl::UnimplementedError(absl::StrCat(
            "worker '", where, "' has no function ", what, "; it knows ", size(),
            ". If the code is linked there, nothing mentioned it: put its registration into the "
            "header")),
        Ran::kNo);
  }
  if (entry->signature.fingerprint != key.fingerprint) {
    return with_ran(absl::UnimplementedError(absl::StrCat("'", entry->name, "' on worker '", where,
                                                          "' is ", entry->signature.text)),
                    Ran::kNo);
  }
  return entry;
}

absl::StatusOr<const FunctionEntry*> Registry::find_callable(const rpc_internal::CallableKey& key,
                                                             std::string_view type) const {
  const auto found = by_callable_.find(key);
  if (found != by_callable_.end()) return found->second;
  return with_ran(absl::FailedPreconditionError(absl::StrCat(
                      "the called ", key.type == 0 ? "function" : "method", ", a '",
                      absl_view(type), "', is not registered in this program; add ",
                      key.type == 0 ? "WEFT_REGISTER_FUNCTION beside it"
                                    : "it to WEFT_REGISTER_CLASS of the RRef's class")),
                  Ran::kNo);
}

}  // namespace weft
