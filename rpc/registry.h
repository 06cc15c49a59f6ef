// The functions that a worker can run for others: an immutable table, searched by id or by pointer.
//
// WEFT_REGISTER_FUNCTION, WEFT_REGISTER_CLASS and weft::define add declarations to the catalogue of
// the process before main. The catalogue only grows. A RegistryBuilder copies it, adds functions of
// its own, and makes the Registry that one worker uses as long as it runs.
//
// Thread safety: a Registry is immutable. Only one thread may use a RegistryBuilder.
// Errors: build() reports all problems at once. Lookups give Unimplemented (this worker does not
// know the function, or with another signature) or FailedPrecondition (the caller's function is not
// registered).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "weft/rpc/codec/object.h"
#include "weft/rpc/codec/schema.h"
#include "weft/rpc/runtime.h"
#include "weft/security/rights/access.h"

namespace weft {

class AccessPolicy;
struct FunctionEntry;

// Marks a function that returns at once and never waits, so that it may run on a transport thread.
struct RunInline {};
inline constexpr RunInline run_inline;

// A wire name, and the source line that gives it. The name must outlive the worker (use a literal).
struct NameHere {
  NameHere(const char* wire_name, const char* in_file = __builtin_FILE(),  // NOLINT: from a literal
           int at_line = __builtin_LINE())
      : name(wire_name), file(in_file), line(at_line) {}
  std::string_view name;
  const char* file;
  int line;
};

namespace rpc_internal {

// Identifies the function behind a caller's pointer by the bytes of the pointer. For methods it
// also has the hash of class and pointer type. A pointer to a virtual method is only an offset, so
// its bytes alone do not identify the method.
struct CallableKey {
  std::array<std::byte, 16> bytes{};
  uint64_t type = 0;

  friend bool operator==(const CallableKey&, const CallableKey&) = default;
  template <class H>
  friend H AbslHashValue(H h, const CallableKey& key) {
    return H::combine(std::move(h), key.bytes, key.type);
  }
};

struct FunctionOptions {
  bool run_inline = false;
  bool has_access = false;
  Access access;

  constexpr void add(RunInline) { run_inline = true; }
  constexpr void add(const Access& tag) {
    has_access = true;
    access = tag;
  }
};
template <class... Tag>
constexpr FunctionOptions function_options(Tag... tag) {
  static_assert((size_t{std::is_same_v<Tag, Access>} + ... + 0) <= 1,
                "weft: only one Access can say who may call a function");
  FunctionOptions options;
  (options.add(tag), ...);
  return options;
}

enum class FunctionKind : uint8_t { kFunction, kMethod, kConstructor, kFactory };

// Decodes the arguments, runs the function and completes the sink. `target` is the object of a
// method call; null for other kinds.
using Invoke = void (*)(const FunctionEntry& entry, Reader& arguments, const Object* target,
                        CallContext& context, ResultSinkPtr sink);

// The part of a declaration that depends only on the function's type. Functions of a type share it.
struct CallableType {
  FunctionKind kind;
  Describe describe;
  Invoke invoke;
};

struct Declaration {
  std::string name;
  const CallableType* type = nullptr;
  CallableKey callable;
  FunctionOptions options;
  const char* file = "";
  int line = 0;
  const TypeInfo* class_type = nullptr;  // of methods and constructors
  std::shared_ptr<const void> state;     // a function object; shared with the registry's entry
};

// A static object that adds one function or class to the catalogue.
class Registration {
 public:
  using List = void (*)(const char* file, int line, std::vector<Declaration>& declarations);

  // A function. `spelling` comes from the compiler or the user and is valid as long as the process.
  Registration(std::string_view spelling, void (*function)(), const CallableType& type,
               FunctionOptions options, const char* file, int line);
  // A class. Each build of a registry calls `list`, which gives the methods.
  Registration(List list, const char* file, int line);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  static std::vector<Declaration> catalogue();

 private:
  void link();

  const std::string_view spelling_;
  void (*const function_)() = nullptr;
  const CallableType* const type_ = nullptr;
  const FunctionOptions options_;
  const List list_ = nullptr;
  const char* const file_;
  const int line_;
  const Registration* next_ = nullptr;
};

CallableKey function_key(void (*function)());
// The key of a function object. Callers have no pointer to it, so it only makes the entry unique.
CallableKey object_key(const void* object);

}  // namespace rpc_internal

struct FunctionEntry {
  std::string name;
  uint64_t id = 0;
  Signature signature;
  rpc_internal::FunctionKind kind = rpc_internal::FunctionKind::kFunction;
  std::string file;
  int line = 0;
  const TypeInfo* class_type = nullptr;  // of a method or constructor
  bool run_inline = false;
  bool serial = false;  // a method of a serial class, whose objects run one method at a time
  // Says who may call it.
  AccessRule access;
  // The Access of its registration, if that has one; a policy may have changed `access`.
  std::optional<AccessRule> tag;
  rpc_internal::Invoke invoke = nullptr;
  rpc_internal::CallableKey callable;
  std::shared_ptr<const void> state;  // a function object; shared with the declaration

  FunctionKey key() const { return {id, signature.fingerprint, name}; }
  // PermissionDenied: another worker makes this call, and its role may not call this function.
  absl::Status check_caller(const CallContext& call, const RpcRuntime& callee) const;
  // The same for the caller of the handler that runs on this thread. For a function that the caller
  // names in an argument. OK outside handlers.
  absl::Status check_caller_here(const RpcRuntime& callee) const;
  // Whether `object` has the class of this method.
  bool accepts(const Object& object) const {
    return class_type != nullptr && object.type != nullptr && object.type->hash == class_type->hash;
  }
};

class Registry {
 public:
  size_t size() const { return entries_.size(); }
  // Sorted by name.
  const std::vector<std::unique_ptr<const FunctionEntry>>& entries() const { return entries_; }

  // For the callee: the entry for a peer's call. For the error: `worker` is this worker's name, and
  // if `key.name` is empty, the error names the id.
  absl::StatusOr<const FunctionEntry*> find_for_call(const FunctionKey& key,
                                                     std::string_view worker) const;
  const FunctionEntry* find(uint64_t id) const;
  // For the caller: the entry of a function of this program. `type` is the C++ type of the function
  // or method, for the error.
  absl::StatusOr<const FunctionEntry*> find_callable(const rpc_internal::CallableKey& key,
                                                     std::string_view type) const;

 private:
  friend class RegistryBuilder;

  std::vector<std::unique_ptr<const FunctionEntry>> entries_;
  absl::flat_hash_map<uint64_t, const FunctionEntry*> by_id_;
  absl::flat_hash_map<rpc_internal::CallableKey, const FunctionEntry*> by_callable_;
};

class RegistryBuilder {
 public:
  // Adds a function object under a name and returns the Function that callers use (function.h). All
  // calls share the object, and they may run at the same time.
  template <class F, class... Tag>
  auto add(NameHere name, F function, Tag... tag);
  void add(rpc_internal::Declaration declaration) {
    declarations_.push_back(std::move(declaration));
  }

  // The rights of the site, which change those that the registrations give.
  void set_policy(std::shared_ptr<const AccessPolicy> policy) { policy_ = std::move(policy); }

  // Makes a registry of the catalogue and the added functions. InvalidArgument lists all problems:
  // two functions with one name, one function with two names or two kinds of Access, a function
  // without a name, two names with one hash. It also names what the policy gets wrong.
  absl::StatusOr<std::shared_ptr<const Registry>> build() const;

 private:
  std::vector<rpc_internal::Declaration> declarations_;
  std::shared_ptr<const AccessPolicy> policy_;  // shared with copies of this builder; may be null
};

}  // namespace weft
