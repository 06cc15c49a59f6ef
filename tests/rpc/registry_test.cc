// Peers and pointers find what is registered, and clashes are named before a job starts.
#include "weft/rpc/registry.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/class.h"
#include "weft/rpc/typed_call.h"
#include "weft/tests/rpc/support/loopback_runtime.h"

namespace registry_test {

using ::testing::HasSubstr;
using ::testing::Not;
using weft::FunctionEntry;
using weft::Object;
using weft::Ran;
using weft::RegistryBuilder;
using weft::testing::LoopbackRuntime;

class Base {
 public:
  virtual ~Base() = default;
  int inherited(int x) { return x + 100; }
  virtual std::string kind() const { return "base"; }
};

class Server : public Base {
 public:
  Server() = default;
  explicit Server(std::vector<int64_t> shape) : weight_(at::ones(shape)) {}
  Server(std::string name, int64_t size) : name_(std::move(name)), weight_(at::ones(size)) {}
  at::Tensor pull() const { return weight_; }
  void push(const at::Tensor& gradient) noexcept { weight_ = weight_.add(gradient); }
  weft::Future<std::string> later() { return later_.future(); }
  std::string caller(weft::CallContext& context, int x) const {
    return context.caller_name() + std::to_string(x);
  }
  std::string kind() const override { return "server " + name_; }
  int set(int) { return 1; }
  int set(std::string) { return 2; }
  void fail() { throw std::runtime_error("broken"); }

  weft::Promise<std::string> later_;

 private:
  std::string name_ = "unnamed";
  at::Tensor weight_;
};
int64_t size_of(const Server& server, int factor) { return server.pull().numel() * factor; }
void rename(Server& server, at::Tensor gradient) { server.push(gradient); }
WEFT_REGISTER_CLASS(Server, weft::constructor<>(), weft::constructor<std::vector<int64_t>>(),
                    weft::constructor<std::string, int64_t>(), &Server::pull, &Server::push,
                    &Server::later, &Server::caller, &Server::kind, &Server::inherited,
                    weft::overload<int>(&Server::set), weft::overload<std::string>(&Server::set),
                    &Server::fail, size_of, rename);

// Callers may know only this class.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual int act(int observation) = 0;
};
WEFT_DECLARE_CLASS(Policy, &Policy::act, weft::serial);  // as in a header
WEFT_DEFINE_CLASS(Policy);
class Greedy final : public Policy {
 public:
  int act(int observation) override { return observation * 2; }
};
std::unique_ptr<Policy> make_policy(bool good) {
  if (!good) return nullptr;
  return std::make_unique<Greedy>();
}
WEFT_REGISTER_FUNCTION(make_policy);
std::shared_ptr<Server> share_server() { return std::make_shared<Server>(); }
WEFT_REGISTER_FUNCTION(share_server);

int plain(int x) { return x; }
WEFT_REGISTER_FUNCTION(plain, weft::run_inline);
int other(int x) { return x + 1; }

// Does what RRef<T>'s verbs do, with a target that the loopback knows.
template <class R, class T, class Pointer, class... P>
absl::StatusOr<weft::async_internal::Stored<weft::result_t<R>>> call(
    const std::shared_ptr<LoopbackRuntime>& runtime, const std::string& target, Pointer method,
    std::type_identity_t<P>... argument) {
  weft::rpc_internal::Outgoing call =
      weft::rpc_internal::open_call(runtime, runtime->id(), weft::CallOptions());
  weft::rpc_internal::choose_method<T>(call, method);
  weft::rpc_internal::put_arguments<P...>(call, std::forward<P>(argument)...);
  call.request.target = target;
  return weft::rpc_internal::start_call<weft::result_t<R>>(std::move(call)).result();
}
template <class T, class R, class C, class... P>
auto run(const std::shared_ptr<LoopbackRuntime>& runtime, const std::string& target,
         R (C::*method)(P...), std::type_identity_t<P>... argument) {
  return call<R, T, R (C::*)(P...), P...>(runtime, target, method, std::forward<P>(argument)...);
}
template <class T, class R, class C, class... P>
auto run(const std::shared_ptr<LoopbackRuntime>& runtime, const std::string& target,
         R (C::*method)(P...) const, std::type_identity_t<P>... argument) {
  return call<R, T, R (C::*)(P...) const, P...>(runtime, target, method,
                                                std::forward<P>(argument)...);
}
// Does what remote<T> does.
template <class T, class... Argument>
absl::Status create(const std::shared_ptr<LoopbackRuntime>& runtime, const std::string& name,
                    Argument&&... argument) {
  using Chosen = weft::rpc_internal::ChosenConstructor<T, Argument&&...>;
  weft::rpc_internal::Outgoing call =
      weft::rpc_internal::open_call(runtime, runtime->id(), weft::CallOptions());
  weft::rpc_internal::choose_constructor<T>(call, Chosen());
  weft::rpc_internal::put_constructor_arguments(call, Chosen(),
                                                std::forward<Argument>(argument)...);
  call.request.creation = name;
  return weft::rpc_internal::start_call<void>(std::move(call)).result().status();
}
template <class R, class... P>
absl::Status create_by(const std::shared_ptr<LoopbackRuntime>& runtime, const std::string& name,
                       R (*function)(P...), std::type_identity_t<P>... argument) {
  weft::rpc_internal::Outgoing call =
      weft::rpc_internal::open_call(runtime, runtime->id(), weft::CallOptions());
  weft::rpc_internal::choose(call, function);
  weft::rpc_internal::put_arguments<P...>(call, std::forward<P>(argument)...);
  call.request.creation = name;
  return weft::rpc_internal::start_call<void>(std::move(call)).result().status();
}

class RegistryTest : public ::testing::Test {
 protected:
  RegistryTest() {
    auto built = RegistryBuilder().build();
    EXPECT_TRUE(built.ok()) << built.status();
    registry = *built;
    runtime = std::make_shared<LoopbackRuntime>(registry);
  }
  const FunctionEntry* entry(std::string_view name) { return registry->find(weft::hash64(name)); }

  std::shared_ptr<const weft::Registry> registry;
  std::shared_ptr<LoopbackRuntime> runtime;
};

TEST_F(RegistryTest, NamesAndSignaturesAreSpelledInFull) {
  const auto signature = [&](std::string_view name) {
    return entry(name) == nullptr ? "missing" : entry(name)->signature.text;
  };
  EXPECT_EQ(signature("registry_test::plain"), "(i32) -> i32");
  EXPECT_EQ(signature("registry_test::Server::pull"), "() -> tensor");
  EXPECT_EQ(signature("registry_test::Server::inherited"), "(i32) -> i32");
  EXPECT_EQ(signature("registry_test::Server::size_of"), "(i32) -> i64");
  EXPECT_EQ(signature("registry_test::Server(list<i64>)"),
            "(list<i64>) -> object class registry_test::Server");
  EXPECT_EQ(signature("registry_test::Server::set(i32)"), "(i32) -> i32");
  EXPECT_EQ(signature("registry_test::Server::set(string)"), "(string) -> i32");
  EXPECT_EQ(signature("registry_test::make_policy"),
            "(bool) -> object class registry_test::Policy");
}

TEST_F(RegistryTest, TagsArriveInTheEntry) {
  EXPECT_TRUE(entry("registry_test::plain")->run_inline);
  EXPECT_FALSE(entry("registry_test::make_policy")->run_inline);
  EXPECT_TRUE(entry("registry_test::Policy::act")->serial);
  EXPECT_TRUE(weft::type_info_of<Policy>().serial);
  EXPECT_FALSE(entry("registry_test::Server::pull")->serial);
}

TEST_F(RegistryTest, EveryListedConstructorMakesAnObject) {
  ASSERT_TRUE(create<Server>(runtime, "none").ok());
  ASSERT_TRUE(create<Server>(runtime, "shape", std::vector<int64_t>{2, 3}).ok());
  ASSERT_TRUE(create<Server>(runtime, "named", "n", 4).ok());
  EXPECT_EQ(*run<Server>(runtime, "none", &Server::kind), "server unnamed");
  EXPECT_TRUE(at::equal(*run<Server>(runtime, "shape", &Server::pull), at::ones({2, 3})));
  EXPECT_EQ(*run<Server>(runtime, "named", &Server::kind), "server n");
}

TEST_F(RegistryTest, MethodsOfEveryShapeRunOnTheirObject) {
  ASSERT_TRUE(create<Server>(runtime, "s", std::vector<int64_t>{2}).ok());
  EXPECT_TRUE(run<Server>(runtime, "s", &Server::push, at::ones(2)).ok());
  EXPECT_TRUE(at::equal(*run<Server>(runtime, "s", &Server::pull), at::ones(2).add(1)));
  EXPECT_EQ(*run<Server>(runtime, "s", &Server::inherited, 1), 101);
  EXPECT_EQ((*run<Server>(runtime, "s", weft::overload<int>(&Server::set), 1)), 1);
  EXPECT_EQ((*run<Server>(runtime, "s", weft::overload<std::string>(&Server::set), "x")), 2);
  EXPECT_EQ(
      (*call<std::string, Server, std::string (Server::*)(weft::CallContext&, int) const, int>(
          runtime, "s", &Server::caller, 3)),
      "caller3");
  EXPECT_EQ(
      (*call<int64_t, Server, int64_t (*)(const Server&, int), int>(runtime, "s", &size_of, 5)),
      10);
  EXPECT_TRUE((call<void, Server, void (*)(Server&, at::Tensor), at::Tensor>(runtime, "s", &rename,
                                                                             at::ones(2))
                   .ok()));
  const absl::Status failed = run<Server>(runtime, "s", &Server::fail).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(weft::trail_of(failed), "w/registry_test::Server::fail");
}

TEST_F(RegistryTest, AMethodThatReturnsAFutureKeepsItsObject) {
  ASSERT_TRUE(create<Server>(runtime, "s").ok());
  weft::rpc_internal::Outgoing outgoing = weft::rpc_internal::open_call(runtime, runtime->id(), {});
  weft::rpc_internal::choose_method<Server>(outgoing, &Server::later);
  outgoing.request.target = "s";
  const weft::Future<std::string> future =
      weft::rpc_internal::start_call<std::string>(std::move(outgoing));
  const std::weak_ptr<void> object = runtime->objects["s"].value;
  runtime->objects.clear();
  ASSERT_FALSE(object.expired());
  static_cast<Server*>(object.lock().get())->later_.set("done");
  EXPECT_EQ(future.wait(), "done");
  EXPECT_TRUE(object.expired());
}

TEST_F(RegistryTest, FactoriesMakeObjectsOfAbstractClasses) {
  ASSERT_TRUE(create_by(runtime, "p", make_policy, true).ok());
  EXPECT_EQ(*run<Policy>(runtime, "p", &Policy::act, 21), 42);
  EXPECT_EQ(runtime->objects["p"].type, &weft::type_info_of<Policy>());
  EXPECT_EQ(create_by(runtime, "null", make_policy, false).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(create_by(runtime, "shared", share_server).ok());
  EXPECT_EQ(*run<Server>(runtime, "shared", &Server::kind), "server unnamed");
  ASSERT_TRUE(create_by(runtime, "value", plain, 5).ok());
  EXPECT_EQ(*static_cast<int*>(runtime->objects["value"].value.get()), 5);
}

TEST_F(RegistryTest, AFactoryCalledForItsValueIsRefusedUnrun) {
  weft::rpc_internal::Outgoing outgoing = weft::rpc_internal::open_call(runtime, runtime->id(), {});
  weft::rpc_internal::choose(outgoing, make_policy);
  weft::rpc_internal::put_arguments<bool>(outgoing, true);
  const absl::Status status =
      weft::rpc_internal::start_call<void>(std::move(outgoing)).result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
}

TEST_F(RegistryTest, AMethodNeverRunsOnAnObjectOfAnotherClass) {
  ASSERT_TRUE(create_by(runtime, "p", make_policy, true).ok());
  const absl::Status status = run<Server>(runtime, "p", &Server::kind).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("class registry_test::Policy"));
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  EXPECT_FALSE(run<Server>(runtime, "nobody", &Server::kind).ok());
}

TEST_F(RegistryTest, AMethodOutsideTheClassListIsRefusedByItsCaller) {
  const absl::Status status = run<Base>(runtime, "s", &Base::kind).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("WEFT_REGISTER_CLASS"));
}

weft::rpc_internal::Declaration declare(std::string name, int (*function)(int), const char* file,
                                        int line) {
  weft::rpc_internal::Declaration declaration;
  declaration.name = std::move(name);
  declaration.type = &weft::rpc_internal::callable_type(function);
  declaration.callable = weft::rpc_internal::function_key(weft::rpc_internal::plain(function));
  declaration.file = file;
  declaration.line = line;
  return declaration;
}

TEST(RegistryBuilderTest, EveryClashIsReportedAtOnceWithBothPlaces) {
  RegistryBuilder builder;
  builder.add(declare("same", other, "a.cc", 1));
  builder.add(declare(
      "same", [](int x) { return x - 1; }, "b.cc", 2));
  builder.add(declare("plain_again", plain, "c.cc", 3));
  const absl::Status status = builder.build().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("two functions are registered as 'same': a.cc:1 and b.cc:2"));
  EXPECT_THAT(text, HasSubstr("'plain_again' (c.cc:3) and as 'registry_test::plain'"));
}

TEST(RegistryBuilderTest, TheSameFunctionFromSeveralFilesIsOneEntry) {
  const size_t before = (*RegistryBuilder().build())->size();
  RegistryBuilder builder;
  builder.add(declare("registry_test::plain", plain, "again.cc", 1));
  EXPECT_EQ((*builder.build())->size(), before);
}

TEST(RegistryBuilderTest, FunctionObjectsUnderOneNameClash) {
  RegistryBuilder builder;
  int n = 0;
  (void)builder.add("count", [&n](int x) { return n += x; });
  EXPECT_TRUE(builder.build().ok());
  (void)builder.add("count", [&n](int x) { return n -= x; });
  EXPECT_THAT(std::string(builder.build().status().message()), HasSubstr("registry_test.cc:"));
}

TEST(RegistryBuilderTest, LookupsSayWhatIsWrong) {
  const auto registry = *RegistryBuilder().build();
  const weft::Function<int(int)> right("registry_test::plain");
  EXPECT_EQ((*registry->find_for_call(right.key(), "w"))->name, "registry_test::plain");
  const weft::Function<int(double)> wrong("registry_test::plain");
  const absl::Status other = registry->find_for_call(wrong.key(), "w").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(weft::ran_of(other), Ran::kNo);
  EXPECT_THAT(std::string(other.message()), HasSubstr("is (i32) -> i32"));
  const absl::Status unknown = registry->find_for_call(weft::FunctionKey{1, 2, ""}, "w").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("0000000000000001"));
}

TEST(TypeInfoTest, TypesAreToldApartByNameNotByStructure) {
  EXPECT_NE((weft::type_info_of<std::map<int, int>>().hash),
            (weft::type_info_of<std::unordered_map<int, int>>().hash));
  EXPECT_NE(weft::type_info_of<Server>().hash, weft::type_info_of<Policy>().hash);
  EXPECT_EQ(weft::type_info_of<Server>().encode, nullptr);
  weft::Writer writer;
  const int value = 7;
  weft::type_info_of<int>().encode(writer, &value);
  EXPECT_EQ(writer.body().size(), sizeof(int));
}

}  // namespace registry_test
