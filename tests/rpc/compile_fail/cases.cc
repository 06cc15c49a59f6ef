// Wrong programs, one a line; check.py compiles this file and wants each line's error to say what
// its comment says. Lines without a comment are right and must stay without error.
// clang-format off
#include "weft/rpc/explain.h"
#include "weft/rpc/verbs.h"

namespace wrong {

struct Foo {};
struct Holder {
  int number = 0;
  Foo foo;
};
inline auto weft_fields(Holder& h) { return std::tie(h.number, h.foo); }
struct NoDefault {
  explicit NoDefault(int) {}
  int value = 0;
};
inline auto weft_fields(NoDefault& n) { return std::tie(n.value); }
struct Other {
  int method(int);
};
struct Abstract {
  virtual ~Abstract() = default;
  virtual int run() = 0;
};
struct Server {
  explicit Server(std::vector<int64_t>) {}
  int pull(int) const;
  int qualified(int) &;
};
WEFT_REGISTER_CLASS(Server, weft::constructor<std::vector<int64_t>>(), &Server::pull);

at::Tensor add(const at::Tensor&, const at::Tensor&);
int two(int, std::string);
int takes_foo(int, Foo);
int takes_foos(std::vector<Foo>);
int takes_holder(Holder);
int takes_no_default(NoDefault);
int changes(at::Tensor&);
int changes_second(int, std::string&);
int takes_pointer(int, int, const char*);
int takes_unique(std::unique_ptr<int>);
int five(int, int, int, int, Foo);
Foo gives_foo();
int* gives_pointer();
weft::Future<weft::Future<int>> gives_nested();
std::unique_ptr<Server> make_server();
int overloaded(int);
double overloaded(double);
template <class T>
T generic(T value);

void right(at::Tensor t) {
  weft::rpc_sync("w", add, t, t);
  weft::rpc_sync({"w", {.timeout = std::chrono::seconds(1)}}, two, 1, "text");
  static_assert(std::is_same_v<weft::object_t<decltype(make_server())>, Server>);
  static_assert(weft::rpc_internal::HasConstructor<Server, std::vector<int64_t>>);
}

void calls(at::Tensor t, Foo foo) {
  int local = 0;
  weft::rpc_sync("w", add, t, foo);                  // argument 2 does not convert
  weft::rpc_sync("w", two, foo, "x");                // argument 1 does not convert
  weft::rpc_sync("w", add, t);                       // too few arguments
  weft::rpc_sync("w", add, t, t, t);                 // too many arguments
  weft::rpc_sync("w", two);                          // too few arguments
  weft::rpc_async("w", two, 1, "x", 3, 4);           // too many arguments
  weft::rpc_sync("w", takes_foo, 1, foo);            // argument 2 of this function cannot be sent
  weft::rpc_sync("w", takes_foos, {});               // argument 1 of this function cannot be sent
  weft::rpc_sync("w", five, 1, 2, 3, 4, foo);        // number is in NotSendable
  weft::rpc_sync("w", takes_holder, Holder());       // a field of this struct cannot be sent
  weft::rpc_sync("w", takes_no_default, NoDefault(1));  // must be default constructible
  weft::rpc_sync("w", changes, t);                   // argument 1 of this function is a non-const reference
  weft::rpc_sync("w", changes_second, 1, "x");       // argument 2 of this function is a non-const reference
  weft::rpc_sync("w", takes_pointer, 1, 2, "x");     // is a pointer, which means nothing
  weft::rpc_sync("w", takes_unique, nullptr);        // argument 1 of this function cannot be sent
  weft::rpc_sync("w", gives_foo);                    // the result of this function cannot be sent
  weft::rpc_sync("w", gives_pointer);                // the result of this function is a pointer
  weft::rpc_sync("w", gives_nested);                 // future of a future
  weft::rpc_async("w", make_server);                 // call it with weft::remote
  weft::rpc_sync("w", &Server::pull, 1);             // a method is called on an object
  weft::rpc_sync("w", [](int x) { return x; }, 1);   // this is no function that other workers know
  weft::rpc_sync("w", 5, 1);                         // this is no function that other workers know
  weft::rpc_sync("w", overloaded, 1);                // deleted function
  weft::rpc_async("w", generic, 1);                  // deleted function
  (void)local;
}

void methods() {
  using namespace weft::rpc_internal::check;
  explain_method_call<Server, decltype(&Other::method), int>();         // belongs to another class
  explain_method_call<Server, decltype(&Server::qualified), int>();     // methods with & or &&
  explain_method_call<Server, decltype(&Server::pull), Foo>();          // argument 1 does not convert
  explain_method_call<Server, decltype(&Server::pull), int, Foo>();     // too many arguments
  explain_remote_class<Holder, int>();                                  // remote<T> needs WEFT_REGISTER_CLASS
  explain_remote_class<Server, std::string>();                          // takes these arguments
}

int with_capture = 0;
const auto captured = weft::define("captured", [n = 3] { return n; });  // lambda without captures
int registered_foo(int, std::string, Foo);
WEFT_REGISTER_FUNCTION(registered_foo);                                 // argument 3 of this function cannot be sent
WEFT_REGISTER_CLASS(Abstract, weft::constructor<>());                   // or is abstract
WEFT_REGISTER_CLASS(Other, &Server::pull);                              // no method of the class

}  // namespace wrong
