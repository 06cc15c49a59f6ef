// An RRef<T> refers to a value that lives on one worker, its owner, and is used from many.
//
//   weft::RRef<at::Tensor> sum = weft::remote("worker1", add, a, b);     // stays on worker1
//   at::Tensor here = sum.to_here();
//   weft::RRef<Server> server = weft::remote<Server>("ps", shape);
//   server.rpc_sync(&Server::push, gradient);
//   server.with({.timeout = 5s}).rpc_async(&Server::pull);
//
// The value lives until no worker refers to it any more. An RRef may be used and sent at once: a
// call that needs the value waits for it. All copies of an RRef in one process are one reference.
//
// Thread safety: an RRef is a value; copies may be used on different threads.
// Lifetime: an RRef may outlive its worker; then it refers to nothing.
// Blocking: rpc_sync, to_here and local_value.
// Errors: RpcError. If the creating function threw, each use of the value gets its error. After the
// worker's shutdown the code is FailedPrecondition. Once the owner is dead, each use gets RRefLost;
// a call that was under way gets Unavailable.
// Protocol: docs/rref_protocol.md.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "weft/rpc/explain.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/internal/rref_calls.h"

namespace weft {

template <class T>
class RRef;

// Whether a status says that the reference itself is lost, and not only that one call failed. A
// lost reference will never work again. Example: its owner has died.
using rref_internal::is_rref_lost;

namespace rref_internal {

// The verbs that RRef<T> and RRef<T>::with(...) have in common. Self gives handle() and options().
template <class T, class Self>
class RRefVerbs {
  using Value = async_internal::Stored<T>;  // so that RRef<void> has a value type too

 public:
  // Returns a copy of the value. On a user, the copy is independent. On the owner, if the value is
  // there already, T's copy constructor makes the copy (unless T is a serial class). An at::Tensor
  // then shares the owner's memory, so clone() it before writing. `timeout` unset: as CallOptions;
  // zero: no limit. RRef<void>: waits until the function has returned.
  T to_here(Timeout timeout = {}) const { return rpc_internal::take(to_here_until(timeout, true)); }
  Future<T> to_here_async() const { return to_here_until({}, false); }

  // On the owner: waits for the value and returns a reference to the value itself. It is valid
  // while this RRef lives and the worker is not shut down. It does not wait for the turn of a
  // serial class: a method may run at the same time.
  Value& local_value() const requires(!std::is_void_v<T>) {
    check_owner(self().handle());
    Object object = object_here(self().handle());
    if (object.type == nullptr) {
      rpc_internal::take(
          rpc_internal::start_call<void>(open_wait(self().handle(), self().options())));
      object = object_here(self().handle());
      if (object.type == nullptr) check_owner(self().handle());  // throws: it has shut down
    }
    return *static_cast<T*>(object.value.get());
  }

// The verbs for one kind of method: the template parameters, and the declaration of `method`.
#define WEFT_INTERNAL_VERBS(PARAMETERS, METHOD)                                           \
  template <PARAMETERS, class... P>                                                       \
  Future<result_t<R>> rpc_async(METHOD, std::type_identity_t<P>... argument) const {      \
    return call<R, P...>(method, false, std::forward<P>(argument)...);                    \
  }                                                                                       \
  template <PARAMETERS, class... P>                                                       \
  result_t<R> rpc_sync(METHOD, std::type_identity_t<P>... argument) const {               \
    return rpc_internal::take(call<R, P...>(method, true, std::forward<P>(argument)...)); \
  }                                                                                       \
  template <PARAMETERS, class... P>                                                       \
  RRef<object_t<R>> remote(METHOD, std::type_identity_t<P>... argument) const {           \
    return create<R, P...>(method, std::forward<P>(argument)...);                         \
  }
#define WEFT_INTERNAL_COMMA ,
  WEFT_INTERNAL_VERBS(class R WEFT_INTERNAL_COMMA class C, R (C::*method)(P...))
  WEFT_INTERNAL_VERBS(class R WEFT_INTERNAL_COMMA class C, R (C::*method)(P...) const)
  WEFT_INTERNAL_VERBS(class R WEFT_INTERNAL_COMMA class C, R (C::*method)(CallContext&, P...))
  WEFT_INTERNAL_VERBS(class R WEFT_INTERNAL_COMMA class C, R (C::*method)(CallContext&, P...) const)
  WEFT_INTERNAL_VERBS(class R, R (*method)(Value&, P...))
  WEFT_INTERNAL_VERBS(class R, R (*method)(const Value&, P...))
#undef WEFT_INTERNAL_COMMA
#undef WEFT_INTERNAL_VERBS

  // The compiler chooses the next overloads only if none above fits. They only explain why.
  template <class M, class... Argument>
  requires(!rpc_internal::check::kMethodAccepts<Value, M, Argument...>) Explained
      rpc_async(M&&, Argument&&...)
  const {
    rpc_internal::check::explain_method_call<Value, M, Argument...>();
    return {};
  }
  template <class M, class... Argument>
  requires(!rpc_internal::check::kMethodAccepts<Value, M, Argument...>) Explained
      rpc_sync(M&&, Argument&&...)
  const {
    rpc_internal::check::explain_method_call<Value, M, Argument...>();
    return {};
  }
  template <class M, class... Argument>
  requires(!rpc_internal::check::kMethodAccepts<Value, M, Argument...>) Explained
      remote(M&&, Argument&&...)
  const {
    rpc_internal::check::explain_method_call<Value, M, Argument...>();
    return {};
  }

 private:
  const Self& self() const { return static_cast<const Self&>(*this); }

  Future<T> to_here_until(Timeout timeout, bool waited_for) const {
    CallOptions options = self().options();
    options.timeout = timeout.or_else(options.timeout);
    if constexpr (std::is_void_v<T>) {
      rpc_internal::Outgoing call = open_wait(self().handle(), options);
      call.request.waited_for = waited_for;
      return rpc_internal::start_call<void>(std::move(call));
    } else if constexpr (!kSendable<T>) {
      static_assert(kSendable<T>,
                    "weft: to_here() needs a type that can be sent; this one stays with its owner: "
                    "call its methods there, or give it weft_fields(T&) or a weft::Codec");
      return {};
    } else {
      if constexpr (std::is_copy_constructible_v<T>) {
        const Object object = object_here(self().handle());
        // A serial object has a gate. It is read only in its turn, by a call to this worker itself.
        if (object.type != nullptr && object.gate == nullptr) {
          Promise<T> promise(&executor_of(self().handle()));
          promise.set(*static_cast<const T*>(object.value.get()));
          return promise.future();
        }
      }
      rpc_internal::Outgoing call = open_to_here(self().handle(), options);
      call.request.waited_for = waited_for;
      return rpc_internal::start_call<T>(std::move(call));
    }
  }

  template <class R, class... P, class Method>
  Future<result_t<R>> call(Method method, bool waited_for,
                           std::type_identity_t<P>&&... argument) const {
    if constexpr (rpc_internal::check::kCallable<R, P...>) {
      rpc_internal::Outgoing call = open_call_on(self().handle(), self().options());
      call.request.waited_for = waited_for;
      rpc_internal::choose_method<Value>(call, method);
      rpc_internal::put_arguments<P...>(call, std::forward<P>(argument)...);
      return rpc_internal::start_call<result_t<R>>(std::move(call));
    } else {
      rpc_internal::check::explain_callable<R, P...>();
      return {};
    }
  }
  template <class R, class... P, class Method>
  RRef<object_t<R>> create(Method method, std::type_identity_t<P>&&... argument) const {
    if constexpr (rpc_internal::check::kRemotable<R, P...>) {
      rpc_internal::Outgoing call = open_call_on(self().handle(), self().options());
      rpc_internal::choose_method<Value>(call, method);
      rpc_internal::put_arguments<P...>(call, std::forward<P>(argument)...);
      return RRef<object_t<R>>(start_remote(std::move(call), type_info_of<object_t<R>>()));
    } else {
      rpc_internal::check::explain_remotable<R, P...>();
      return {};
    }
  }
};

// The result of RRef<T>::with(options): the same verbs, called with these options.
template <class T>
class RRefWith : public RRefVerbs<T, RRefWith<T>> {
 public:
  RRefWith(RRefHandlePtr handle, CallOptions options)
      : handle_(std::move(handle)), options_(options) {}

 private:
  friend class RRefVerbs<T, RRefWith<T>>;
  const RRefHandlePtr& handle() const { return handle_; }
  const CallOptions& options() const { return options_; }

  RRefHandlePtr handle_;
  CallOptions options_;
};

template <class R, class... P, class Callee>
RRef<object_t<R>> remote_call(const Destination& to, const Callee& function,
                              std::type_identity_t<P>&&... argument) {
  if constexpr (rpc_internal::check::kRemotable<R, P...>) {
    rpc_internal::Outgoing call = rpc_internal::open_call(to);
    rpc_internal::choose(call, function);
    rpc_internal::put_arguments<P...>(call, std::forward<P>(argument)...);
    return RRef<object_t<R>>(start_remote(std::move(call), type_info_of<object_t<R>>()));
  } else {
    rpc_internal::check::explain_remotable<R, P...>();
    return {};
  }
}

}  // namespace rref_internal

template <class T>
class RRef : public rref_internal::RRefVerbs<T, RRef<T>> {
 public:
  RRef() = default;  // empty: refers to nothing, every use throws
  explicit RRef(rref_internal::RRefHandlePtr handle) : handle_(std::move(handle)) {}

  explicit operator bool() const { return handle_ != nullptr; }
  // `owner` is the worker where the value lives. These five functions are plain facts: they also
  // work after any failure. After this worker's shutdown, the name is the text of the owner's id.
  WorkerId owner() const { return checked()->owner(); }
  std::string owner_name() const { return checked()->owner_name(); }
  bool is_owner() const { return checked()->is_owner(); }
  RRefId id() const { return checked()->rref(); }
  std::string str() const { return rref_internal::describe(handle_.get()); }

  // Once true, the owner keeps the value for this worker, whatever happens to other users.
  bool confirmed_by_owner() const { return rref_internal::confirmed(handle_); }
  // Complete when the owner has confirmed this reference. For a `remote` call this means that the
  // owner has accepted the call; its function may still run. If the owner never will confirm it,
  // the future has the reason as its error. If the owner is lost, the function may have run.
  Future<void> creation() const { return rref_internal::accepted(handle_); }

  // The verbs with options: rref.with({.timeout = 5s}).rpc_sync(&Class::method, ...).
  rref_internal::RRefWith<T> with(CallOptions options) const { return {handle_, options}; }

  // True if both refer to the same RRef id; values are not compared. Two empty RRefs are equal.
  friend bool operator==(const RRef& a, const RRef& b) {
    return a.handle_ == b.handle_ ||
           (a.handle_ != nullptr && b.handle_ != nullptr && a.id() == b.id());
  }
  friend std::ostream& operator<<(std::ostream& out, const RRef& rref) { return out << rref.str(); }

 private:
  friend class rref_internal::RRefVerbs<T, RRef<T>>;
  friend struct Codec<RRef<T>>;
  const rref_internal::RRefHandlePtr& handle() const { return handle_; }
  CallOptions options() const { return {}; }
  const rref_internal::RRefHandlePtr& checked() const {
    if (handle_ == nullptr) rref_internal::throw_empty();
    return handle_;
  }

  rref_internal::RRefHandlePtr handle_;
};

template <class T>
struct Codec<RRef<T>> {
  static void encode(Writer& writer, const RRef<T>& value) {
    rref_internal::write_handle(writer, value.handle_);
  }
  static RRef<T> decode(Reader& reader) {
    return RRef<T>(rref_internal::read_handle(reader, type_info_of<T>()));
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("rref<");
    if constexpr (kSendable<T>) {
      // Not type_info_of: a struct may hold references to its own type.
      schema.type<T>();
    } else {
      schema.text(type_info_of<T>().name);
    }
    schema.text(">");
  }
};

// Makes the current worker the owner of `value`. If `value` is a smart pointer, the worker owns the
// object that it points to.
template <class T>
RRef<object_t<T>> make_rref(T&& value) {
  using Value = std::remove_cvref_t<T>;
  const TypeInfo* type = &type_info_of<object_t<T>>();
  if constexpr (rpc_internal::kFactory<Value>) {
    std::shared_ptr<object_t<T>> object = std::forward<T>(value);
    if (object == nullptr) rref_internal::throw_empty();
    return RRef<object_t<T>>(rref_internal::own(Object(std::move(object), type)));
  } else {
    static_assert(std::is_same_v<Value, object_t<T>>,
                  "weft: make_rref takes a value or a smart pointer, not a Future or StatusOr");
    return RRef<Value>(
        rref_internal::own(Object(std::make_shared<Value>(std::forward<T>(value)), type)));
  }
}

// Makes the current worker the owner of a copy of `value`, for a caller that keeps its own:
// make_rref<T>(lvalue).
template <class T>
requires(!std::is_reference_v<T> &&
         std::is_copy_constructible_v<T>) RRef<object_t<T>> make_rref(const T& value) {
  return make_rref<T>(T(value));
}

// Runs a function on another worker (or this one) and leaves its result there. CallOptions::timeout
// limits the time until the owner has accepted the call.
template <class R, class... P>
RRef<object_t<R>> remote(const Destination& to, R (*function)(P...),
                         std::type_identity_t<P>... argument) {
  return rref_internal::remote_call<R, P...>(to, function, std::forward<P>(argument)...);
}
template <class R, class... P>
RRef<object_t<R>> remote(const Destination& to, R (*function)(CallContext&, P...),
                         std::type_identity_t<P>... argument) {
  return rref_internal::remote_call<R, P...>(to, function, std::forward<P>(argument)...);
}
template <class R, class... P>
RRef<object_t<R>> remote(const Destination& to, const Function<R(P...)>& function,
                         std::type_identity_t<P>... argument) {
  return rref_internal::remote_call<R, P...>(to, function, std::forward<P>(argument)...);
}

// Constructs an object of the registered class T on worker `to` and leaves it there.
template <class T, class... Argument>
requires rpc_internal::HasConstructor<T, Argument...> RRef<T> remote(const Destination& to,
                                                                     Argument&&... argument) {
  using Constructor = rpc_internal::ChosenConstructor<T, Argument...>;
  rpc_internal::Outgoing call = rpc_internal::open_call(to);
  rpc_internal::choose_constructor<T>(call, Constructor());
  rpc_internal::put_constructor_arguments(call, Constructor(), std::forward<Argument>(argument)...);
  return RRef<T>(rref_internal::start_remote(std::move(call), type_info_of<T>()));
}

// The compiler chooses the next overloads only if none above fits. They only explain why.
template <auto... nothing_explicit, class F, class... Argument>
requires(!rpc_internal::check::kAccepts<F, Argument...>) Explained
    remote(const Destination&, F&&, Argument&&...) {
  rpc_internal::check::explain_call<F, Argument...>();
  return {};
}
template <class T, class... Argument>
requires(!rpc_internal::HasConstructor<T, Argument...>) Explained
    remote(const Destination&, Argument&&...) {
  rpc_internal::check::explain_remote_class<T, Argument...>();
  return {};
}
Explained remote(const Destination&, overloaded_function__choose_one_with_weft_overload,
                 ...) = delete;

}  // namespace weft
