// Registers classes, so that other workers can create their objects and call their methods.
//
//   class Server { public: explicit Server(std::vector<int64_t> shape); at::Tensor pull() const; };
//   WEFT_REGISTER_CLASS(Server, weft::constructor<std::vector<int64_t>>(), &Server::pull);
//
// Put the macro below the class, in its header and in its namespace, because remote<Server> must
// see it. The list may contain constructors, methods, and free functions that take Server& or const
// Server& first. A method may be const, noexcept, virtual, inherited, or chosen by
// weft::overload<...>(...). With the tag weft::serial, the methods of one object run one at a time.
// An abstract class lists no constructor; a function that returns std::unique_ptr<Server> makes its
// objects. A weft::Access in the list concerns what follows it (security/rights/access.h).
//
// Every file that includes such a header compiles the stubs of all methods again. To compile them
// once, register the class in two parts: WEFT_DECLARE_CLASS, with the same list, in the header, and
// WEFT_DEFINE_CLASS(Server) in one source file, in the same namespace.
//
// Thread safety: registrations happen during static initialisation.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "weft/rpc/function.h"

namespace weft {

template <class... P>
struct Constructor {};
template <class... P>
constexpr Constructor<P...> constructor() {
  return {};
}

struct Serial {};
inline constexpr Serial serial;

namespace rpc_internal {

// The list of WEFT_REGISTER_CLASS for T, which weft_class(type<T>) returns.
template <class T, auto... members>
struct ClassInfo {};

template <class T>
concept RegisteredClass = requires {
  weft_class(type<T>{});
};

namespace check {

// Whether the class of a member pointer is T or a base of T. True for all other callables.
template <class T, class Pointer>
inline constexpr bool kMethodOf = true;
template <class T, class Function, class C>
inline constexpr bool kMethodOf<T, Function C::*> = std::is_base_of_v<C, T>;

}  // namespace check

// Describes the six shapes of a method of T in one form; noexcept makes no difference.
template <class T, class Pointer>
struct Method {
  static constexpr bool kIsMethod = false;
};
template <class T, class MemberPointer, bool with_context, class R, class... P>
struct MethodOf {
  static constexpr bool kIsMethod = true;
  using Pointer = MemberPointer;  // without noexcept, as callers deduce it
  static constexpr bool kFits = check::kRemotable<R, P...>;
  static constexpr void explain() { check::explain_remotable<R, P...>(); }
  static constexpr CallableType type() {
    return {FunctionKind::kMethod, &describe_function<R, P...>,
            &invoke_method<T, Pointer, with_context, R, P...>};
  }
};
template <class T, class R, class C, class... P>
struct Method<T, R (C::*)(P...)> : MethodOf<T, R (C::*)(P...), false, R, P...> {};
template <class T, class R, class C, class... P>
struct Method<T, R (C::*)(P...) const> : MethodOf<T, R (C::*)(P...) const, false, R, P...> {};
template <class T, class R, class C, class... P>
struct Method<T, R (C::*)(CallContext&, P...)>
    : MethodOf<T, R (C::*)(CallContext&, P...), true, R, P...> {};
template <class T, class R, class C, class... P>
struct Method<T, R (C::*)(CallContext&, P...) const>
    : MethodOf<T, R (C::*)(CallContext&, P...) const, true, R, P...> {};
template <class T, class R, class... P>
struct Method<T, R (*)(T&, P...)> : MethodOf<T, R (*)(T&, P...), false, R, P...> {};
template <class T, class R, class... P>
struct Method<T, R (*)(const T&, P...)> : MethodOf<T, R (*)(const T&, P...), false, R, P...> {};
template <class T, class R, class C, class... P>
struct Method<T, R (C::*)(P...) noexcept> : Method<T, R (C::*)(P...)> {};
template <class T, class R, class C, class... P>
struct Method<T, R (C::*)(P...) const noexcept> : Method<T, R (C::*)(P...) const> {};
template <class T, class R, class... P>
struct Method<T, R (*)(T&, P...) noexcept> : Method<T, R (*)(T&, P...)> {};
template <class T, class R, class... P>
struct Method<T, R (*)(const T&, P...) noexcept> : Method<T, R (*)(const T&, P...)> {};

// The key under which a registry finds the entry of a caller's &T::method.
template <class T, class Pointer>
CallableKey method_key(Pointer pointer) {
  static constexpr uint64_t kType = hash64(type_spelling<Method<T, Pointer>>());
  CallableKey key;
  std::memcpy(key.bytes.data(), &pointer, sizeof(pointer));
  key.type = kType;
  return key;
}

// Makes the declarations of one class. This part does not depend on the types.
class ClassLister {
 public:
  ClassLister(std::string_view spelling, const TypeInfo& type, const char* file, int line,
              std::vector<Declaration>& declarations);
  void method(std::string_view spelling, const CallableType& type, const CallableKey& key);
  void constructor(std::string name, const CallableType& type);
  // Says who may call what is listed from now on.
  void access(const Access& tag) { options_.add(tag); }

 private:
  Declaration& add(std::string name, const CallableType& type);
  const std::string name_;
  const TypeInfo& class_type_;
  const char* const file_;
  const int line_;
  FunctionOptions options_;
  std::vector<Declaration>& declarations_;
};

template <class T, class... P>
inline constexpr CallableType kConstructorType{
    FunctionKind::kConstructor, &describe_constructor<T, P...>, &invoke_constructor<T, P...>};

// "Server(list<i64>)"
std::string constructor_name(std::string_view class_spelling, const Signature& signature);

template <class T, class... P>
FunctionKey constructor_key() {
  static const std::string name =
      constructor_name(type_spelling<T>(), constructor_signature<T, P...>());
  static const uint64_t id = hash64(name);
  return {id, constructor_signature<T, P...>().fingerprint, name};
}

template <class T, auto member>
struct Member {
  using Traits = Method<T, std::remove_const_t<decltype(member)>>;
  static void list(ClassLister& lister) {
    if constexpr (!Traits::kIsMethod ||
                  !check::kMethodOf<T, std::remove_const_t<decltype(member)>>) {
      [[maybe_unused]] check::NotAMethodOfThisClass<T, decltype(member)> mistake;
    } else if constexpr (!Traits::kFits) {
      Traits::explain();
    } else {
      static constexpr CallableType kType = Traits::type();
      typename Traits::Pointer pointer = member;
      lister.method(value_spelling<member>(), kType, method_key<T>(pointer));
    }
  }
};
template <class T, class... P, Constructor<P...> listed>
struct Member<T, listed> {
  static void list(ClassLister& lister) {
    if constexpr (!check::kParametersFit<P...>) {
      check::explain_parameters<P...>();
    } else if constexpr (!std::is_constructible_v<T, P...>) {
      [[maybe_unused]] check::NotAConstructor<T, P...> mistake;
    } else {
      lister.constructor(std::string(constructor_key<T, P...>().name), kConstructorType<T, P...>);
    }
  }
};
template <class T, Serial tag>
struct Member<T, tag> {
  static void list(ClassLister&) {}
};
template <class T, Access tag>
struct Member<T, tag> {
  static void list(ClassLister& lister) { lister.access(tag); }
};

// Whether each Access of a list has something after it that is not another one.
template <auto... members>
constexpr bool accesses_are_used() {
  bool open = false, good = true;
  const auto see = [&](bool access) {
    good = good && !(open && access);
    open = access;
  };
  (see(std::is_same_v<std::remove_const_t<decltype(members)>, Access>), ...);
  return good && !open;
}

template <class T, auto... members>
void list_class(const char* file, int line, std::vector<Declaration>& declarations) {
  static_assert(
      accesses_are_used<members...>(),
      "weft: in a class's list, a weft::Access stands before the methods that it concerns");
  ClassLister lister(type_spelling<T>(), type_info_of<T>(), file, line, declarations);
  (Member<T, members>::list(lister), ...);
}

// Notes whether T is serial. Each shared library may have its own TypeInfo of T. Returns true.
template <class T, auto... members>
bool note_serial(ClassInfo<T, members...>) {
  if constexpr ((std::is_same_v<std::remove_const_t<decltype(members)>, Serial> || ...)) {
    mutable_type_info<T>().serial = true;
  }
  return true;
}

template <class T, auto... members>
Registration register_class(ClassInfo<T, members...> info, const char* file, int line) {
  note_serial(info);
  return Registration(&list_class<T, members...>, file, line);
}

// Chooses among the listed constructors by C++ overload resolution.
template <int number, class Listed>
struct Pick {
  struct Nothing {};
  static void pick(Nothing, Nothing, Nothing, Nothing);
};
template <int number, class... P>
struct Pick<number, Constructor<P...>> {
  static Constructor<P...> pick(std::type_identity_t<P>...);
};
template <class Sequence, class... Listed>
struct Picker;
template <int... number, class... Listed>
struct Picker<std::integer_sequence<int, number...>, Listed...> : Pick<number, Listed>... {
  using Pick<number, Listed>::pick...;
};

template <class T, auto... members>
auto picker_of(ClassInfo<T, members...>)
    -> Picker<std::make_integer_sequence<int, sizeof...(members)>,
              std::remove_const_t<decltype(members)>...>;

// The listed constructor of T that accepts these arguments, as Constructor<P...>.
template <class T, class... Argument>
using ChosenConstructor =
    decltype(decltype(picker_of(weft_class(type<T>{})))::pick(std::declval<Argument>()...));

template <class T, class... Argument>
concept HasConstructor = RegisteredClass<T> && requires {
  typename ChosenConstructor<T, Argument...>;
};

}  // namespace rpc_internal
}  // namespace weft

#define WEFT_INTERNAL_CLASS_LIST(Class, ...)                                                \
  [[maybe_unused]] inline ::weft::rpc_internal::ClassInfo<Class __VA_OPT__(, ) __VA_ARGS__> \
  weft_class(::weft::type<Class>) {                                                         \
    return {};                                                                              \
  }

// WEFT_REGISTER_CLASS(Class, weft::constructor<...>(), &Class::method, free_function, ...)
// The list may also have weft::serial, weft::Access{...} and weft::local_only.
#define WEFT_REGISTER_CLASS(Class, ...)                      \
  WEFT_INTERNAL_CLASS_LIST(Class __VA_OPT__(, ) __VA_ARGS__) \
  WEFT_INTERNAL_REGISTRATION =                               \
      ::weft::rpc_internal::register_class(weft_class(::weft::type<Class>{}), __FILE__, __LINE__)

// Takes what WEFT_REGISTER_CLASS takes. While the program starts, it calls the function that
// WEFT_DEFINE_CLASS defines. So the linker keeps that file, also if it comes from a library.
#define WEFT_DECLARE_CLASS(Class, ...)                                                \
  WEFT_INTERNAL_CLASS_LIST(Class __VA_OPT__(, ) __VA_ARGS__)                          \
  bool weft_define_class(::weft::type<Class>);                                        \
  [[maybe_unused]] static const bool WEFT_INTERNAL_JOIN(weft_defined_, __COUNTER__) = \
      ::weft::rpc_internal::note_serial(weft_class(::weft::type<Class>{})) &&         \
      weft_define_class(::weft::type<Class>{})
#define WEFT_DEFINE_CLASS(Class)                                                    \
  bool weft_define_class(::weft::type<Class> type) {                                \
    [[maybe_unused]] static const ::weft::rpc_internal::Registration registration = \
        ::weft::rpc_internal::register_class(weft_class(type), __FILE__, __LINE__); \
    return true;                                                                    \
  }                                                                                 \
  static_assert(::weft::rpc_internal::RegisteredClass<Class>, "weft: declare the class too")
