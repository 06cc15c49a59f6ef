// What a worker can be asked to run: an immutable table of functions, by id and by pointer.
//
// The catalogue collects what WEFT_REGISTER_FUNCTION, WEFT_REGISTER_CLASS and weft::define declare
// before main; it only grows. A RegistryBuilder takes a snapshot of it, adds functions of its own,
// and makes the Registry that one worker uses for its whole life.
//
// Thread safety: a Registry is immutable; a RegistryBuilder belongs to one thread.
// Errors: build() reports all problems at once. Lookups: Unimplemented (not known here, or known
// with another signature), FailedPrecondition (a caller's function that was never registered).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "weft/rpc/codec/object.h"
#include "weft/rpc/codec/schema.h"
#include "weft/rpc/runtime.h"

namespace weft {

struct FunctionEntry;

// Marks a function that returns at once and never waits: it may run on a transport thread.
struct RunInline {};
inline constexpr RunInline run_inline;

// A wire name and the place where it is given. The name outlives the worker (a literal does).
struct NameHere {
  NameHere(const char* wire_name, const char* in_file = __builtin_FILE(),  // NOLINT: from a literal
           int at_line = __builtin_LINE())
      : name(wire_name), file(in_file), line(at_line) {}
  std::string_view name;
  const char* file;
  int line;
};

namespace rpc_internal {

// Where a caller's pointer leads: its bytes and, for methods, the hash of class and pointer type.
// The bytes alone do not name a method: a virtual one holds no more than an offset.
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

  constexpr void add(RunInline) { run_inline = true; }
};
template <class... Tag>
constexpr FunctionOptions function_options(Tag... tag) {
  FunctionOptions options;
  (options.add(tag), ...);
  return options;
}

enum class FunctionKind : uint8_t { kFunction, kMethod, kConstructor, kFactory };

// Decodes the arguments, runs the function and fills the sink. `target` is the object of a method,
// of the entry's class; null for other kinds.
using Invoke = void (*)(const FunctionEntry& entry, Reader& arguments, const Object* target,
                        CallContext& context, ResultSinkPtr sink);

// What only depends on a function's type; shared by all functions of that type.
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
  std::shared_ptr<const void> state;     // of function objects; kept by the registry
};

// A static object that stands for one function or class in the catalogue.
class Registration {
 public:
  using List = void (*)(const char* file, int line, std::vector<Declaration>& declarations);

  // A function; `spelling` is the compiler's or the user's own, and lives for ever.
  Registration(std::string_view spelling, void (*function)(), const CallableType& type,
               FunctionOptions options, const char* file, int line);
  // A class; `list` names its methods once a registry is built.
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
// Of a function object, which no caller has a pointer to.
CallableKey object_key(const void* object);

}  // namespace rpc_internal

struct FunctionEntry {
  std::string name;
  uint64_t id = 0;
  Signature signature;
  rpc_internal::FunctionKind kind = rpc_internal::FunctionKind::kFunction;
  std::string file;
  int line = 0;
  const TypeInfo* class_type = nullptr;  // methods and constructors: of the class
  bool run_inline = false;
  bool serial = false;  // a method of a class whose objects run one method at a time
  rpc_internal::Invoke invoke = nullptr;
  rpc_internal::CallableKey callable;
  std::shared_ptr<const void> state;  // of function objects

  FunctionKey key() const { return {id, signature.fingerprint, name}; }
  // Whether `object` is of the class that this method belongs to.
  bool accepts(const Object& object) const {
    return class_type != nullptr && object.type != nullptr && object.type->hash == class_type->hash;
  }
};

class Registry {
 public:
  size_t size() const { return entries_.size(); }
  // In order of their names.
  const std::vector<std::unique_ptr<const FunctionEntry>>& entries() const { return entries_; }

  // For the callee: the entry that a call from a peer means. `key.name` may be empty, then the
  // error says the id; `worker` is this worker's name, for the error.
  absl::StatusOr<const FunctionEntry*> find_for_call(const FunctionKey& key,
                                                     std::string_view worker) const;
  const FunctionEntry* find(uint64_t id) const;
  // For the caller: the entry of one of this program's own functions.
  // `type`: of the function or method, as C++ spells it; for the error.
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
  // Adds a function object under a name and gives the Function to call it by (function.h). The
  // object is shared by all calls, which may run at the same time.
  template <class F, class... Tag>
  auto add(NameHere name, F function, Tag... tag);
  void add(rpc_internal::Declaration declaration) {
    declarations_.push_back(std::move(declaration));
  }

  // The catalogue and what was added. InvalidArgument lists every problem: a name for two
  // functions, a function with two names, a function that has no name of its own.
  absl::StatusOr<std::shared_ptr<const Registry>> build() const;

 private:
  std::vector<rpc_internal::Declaration> declarations_;
};

}  // namespace weft
