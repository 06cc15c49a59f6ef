// Which workers may call which functions: by their roles, and by the policy file of a site.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/rpc_error.h"
#include "weft/rpc/aten/aten.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"
#include "weft/tests/base/captured_log.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace access_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using weft::Ran;
using weft::RRef;
using weft::WorkerOptions;
using weft::WorkerScope;
using weft::testing::error_of;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;

std::atomic<int> runs{0};

int open_to_all() { return ++runs; }
WEFT_REGISTER_FUNCTION(open_to_all);
int for_trainers() { return ++runs; }
WEFT_REGISTER_FUNCTION(for_trainers, weft::Access{"trainer"});
int for_two_roles(RRef<int> value) { return value.to_here() + ++runs; }
WEFT_REGISTER_FUNCTION(for_two_roles, weft::Access{"trainer", "evaluator"});
int for_itself() { return ++runs; }
WEFT_REGISTER_FUNCTION(for_itself, weft::local_only, weft::run_inline);

class Store {
 public:
  explicit Store(int value) : value_(value) { ++runs; }
  int get() const { return value_; }
  void set(int value) {
    ++runs;
    value_ = value;
  }
  void reset() {
    ++runs;
    value_ = 0;
  }

 private:
  int value_;
};
WEFT_REGISTER_CLASS(Store, weft::Access{"trainer"}, weft::constructor<int>(), &Store::set,
                    weft::Access{}, &Store::get, weft::local_only, &Store::reset);

// Worker 0 is a trainer, worker 1 an evaluator, worker 2 has the default role.
const std::vector<std::string> kRoles = {"trainer", "evaluator", ""};

WorkerWorld::Customize with_roles(TransportKind kind, WorkerWorld::Customize customize = nullptr) {
  return WorkerWorld::over(kind,
                           [customize = std::move(customize)](size_t rank, WorkerOptions& options) {
                             options.place.role_name = kRoles[rank];
                             if (customize) customize(rank, options);
                           });
}

class AccessWorldTest : public testing::TestWithParam<TransportKind> {
 protected:
  AccessWorldTest() { runs = 0; }
};
INSTANTIATE_TEST_SUITE_P(Transports, AccessWorldTest,
                         testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                         TransportKind::kFallback),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

// The call fails because `worker`, with its role, may not make it. Nothing has run.
void expect_denied(const absl::Status& status, const std::string& worker, const std::string& role,
                   const std::string& function) {
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("worker '" + worker + "' with role '" + role + "'"),
                    HasSubstr("'access_test::" + function + "'")));
}

TEST_P(AccessWorldTest, AFunctionRunsOnlyForItsRoles) {
  const weft::testing::CapturedLog log;
  WorkerWorld world(3, with_roles(GetParam()));
  {
    const WorkerScope scope(world[0]);
    EXPECT_EQ(weft::rpc_sync("worker2", for_trainers), 1);
  }
  {
    const WorkerScope scope(world[1]);
    EXPECT_EQ(weft::rpc_sync("worker2", open_to_all), 2);
    const absl::Status denied = error_of([] { weft::rpc_sync("worker2", for_trainers); });
    expect_denied(denied, "worker1", "evaluator", "for_trainers");
    EXPECT_THAT(std::string(denied.message()), HasSubstr("is for role trainer"));
    EXPECT_EQ(weft::worker_of(denied), "worker2");
  }
  {
    const WorkerScope scope(world[2]);
    expect_denied(error_of([] { weft::rpc_sync("worker0", for_trainers); }), "worker2", "default",
                  "for_trainers");
    EXPECT_EQ(weft::rpc_sync("worker2", for_trainers), 3);  // its own functions are always allowed
  }
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(log.lines_with("worker 'worker1' with role 'evaluator' may not call").size(), 1u);
  world.shutdown_all();
}

TEST_P(AccessWorldTest, WhatIsLocalRunsForNoOtherWorker) {
  WorkerWorld world(3, with_roles(GetParam()));
  for (size_t rank = 0; rank < 3; ++rank) {
    const WorkerScope scope(world[rank]);
    const std::string other = WorkerWorld::name((rank + 1) % 3);
    expect_denied(error_of([&] { weft::rpc_sync(other, for_itself); }), WorkerWorld::name(rank),
                  kRoles[rank].empty() ? "default" : kRoles[rank], "for_itself");
    EXPECT_EQ(weft::rpc_sync(WorkerWorld::name(rank), for_itself), static_cast<int>(rank) + 1);
  }
  world.shutdown_all();
}

TEST_P(AccessWorldTest, EachMethodAndConstructorHasTheAccessBeforeIt) {
  WorkerWorld world(3, with_roles(GetParam()));
  RRef<Store> store;
  {
    const WorkerScope scope(world[0]);
    store = weft::remote<Store>("worker2", 5);
    store.rpc_sync(&Store::set, 6);
    expect_denied(error_of([&] { store.rpc_sync(&Store::reset); }), "worker0", "trainer",
                  "Store::reset");
  }
  {
    const WorkerScope scope(world[1]);
    const RRef<Store> never = weft::remote<Store>("worker2", 7);
    expect_denied(never.creation().result().status(), "worker1", "evaluator", "Store(i32)");
    expect_denied(error_of([&] { never.rpc_sync(&Store::get); }), "worker1", "evaluator",
                  "Store(i32)");
  }
  EXPECT_EQ(runs, 2);
  {
    const WorkerScope scope(world[0]);
    EXPECT_EQ(store.rpc_sync(&Store::get), 6);
    store = {};
  }
  world.shutdown_all();
}

// The refused call's references are given back, so that nothing keeps their values.
TEST_P(AccessWorldTest, ARefusedCallLeavesNothing) {
  WorkerWorld world(3, with_roles(GetParam()));
  {
    const WorkerScope scope(world[2]);
    for (int i = 0; i < 20; ++i) {
      const RRef<int> value = weft::make_rref(i);
      expect_denied(error_of([&] { weft::rpc_sync("worker1", for_two_roles, value); }), "worker2",
                    "default", "for_two_roles");
    }
  }
  world.shutdown_all();  // it waits until no reference is left
  EXPECT_EQ(runs, 0);
}

// Sends a call of this function without any argument, and returns the answer.
absl::Status call_blindly(weft::RpcRuntime& runtime, weft::WorkerId to,
                          const weft::FunctionEntry& entry) {
  weft::RpcRuntime::CallRequest request;
  request.to = to;
  request.function = entry.key();
  auto promise = std::make_shared<weft::Promise<int>>();
  const weft::Future<int> answered = promise->future();
  runtime.call(std::move(request), [promise](absl::StatusOr<weft::Reader> reply) {
    promise->set(reply.ok() ? absl::StatusOr<int>(0) : reply.status());
  });
  return answered.result().status();
}

// Each function of this program, Weft's own among them, called by each role.
TEST_P(AccessWorldTest, EachRoleReachesExactlyTheFunctionsThatAreForIt) {
  WorkerWorld world(3, with_roles(GetParam()));
  const std::shared_ptr<weft::RpcRuntime>& callee = world[2].runtime();
  size_t denied = 0, functions = 0;
  for (const auto& entry : callee->registry().entries()) {
    ++functions;
    for (size_t rank = 0; rank < 2; ++rank) {
      const absl::Status status = call_blindly(*world[rank].runtime(), world[2].id(), *entry);
      const bool refused = absl::IsPermissionDenied(status) &&
                           status.message().find("may not call") != std::string::npos;
      EXPECT_EQ(refused, !entry->access.allows(kRoles[rank])) << entry->name << ": " << status;
      denied += refused ? 1 : 0;
    }
    if (entry->name.starts_with("weft.") || entry->name.starts_with("weft::")) {
      EXPECT_EQ(entry->access, weft::AccessRule()) << entry->name;
    }
  }
  EXPECT_GE(functions, 10u);
  // Trainers: for_itself, Store::reset. Evaluators: these, for_trainers, Store::set, Store(i32).
  EXPECT_EQ(denied, 7u);
  world.shutdown_all();
}

// A caller that names a function in an argument needs the right to call that function.
TEST(AccessByName, IsCheckedForTheCallerOfTheHandlerThatRuns) {
  WorkerWorld world(3, with_roles(TransportKind::kInproc));
  const weft::RpcRuntime& callee = *world[2].runtime();
  const weft::FunctionEntry* entry =
      callee.registry().find(weft::hash64("access_test::for_trainers"));
  ASSERT_NE(entry, nullptr);
  weft::SystemClock clock;
  const auto check = [&](size_t rank, const std::string& role) {
    weft::CallScope scope;
    scope.call_context = std::make_shared<weft::CallContext>(clock, world[rank].id(), "somebody",
                                                             weft::kNever, role);
    const weft::CallScopeGuard guard(std::move(scope));
    return entry->check_caller_here(callee);
  };
  EXPECT_EQ(check(0, "trainer"), absl::OkStatus());
  EXPECT_EQ(check(2, "anything"), absl::OkStatus());
  EXPECT_EQ(check(1, "evaluator").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(weft::ran_of(check(1, "evaluator")), Ran::kNo);
  EXPECT_EQ(entry->check_caller_here(callee), absl::OkStatus());  // outside handlers
  world.shutdown_all();
}

class PolicyFileTest : public testing::Test {
 protected:
  PolicyFileTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_policy_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    runs = 0;
  }
  ~PolicyFileTest() override { fs::remove_all(folder_); }

  // Worker 2 has the policy.
  WorkerWorld::Customize with_policy(const std::string& text) {
    std::ofstream(file()) << text;
    return with_roles(TransportKind::kInproc, [file = file()](size_t rank, WorkerOptions& options) {
      if (rank == 2) options.policy_file = file;
    });
  }
  absl::Status join_alone(const std::string& text) {
    std::ofstream(file()) << text;
    WorkerWorld world(TransportKind::kInproc);
    WorkerOptions options = world.options_of(0, 1);
    options.policy_file = file();
    return error_of([&] { world.join(options); });
  }
  std::string file() const { return folder_ + "/policy.json"; }

 private:
  std::string folder_;
};

TEST_F(PolicyFileTest, TakesThePlaceOfWhatTheRegistrationsSay) {
  WorkerWorld world(3, with_policy(R"({
    "roles": ["trainer", "evaluator", "default"],
    "rules": [{"functions": "access_test::for_trainers", "roles": ["evaluator"]}],
    "default": "none"})"));
  {
    const WorkerScope scope(world[0]);
    expect_denied(error_of([] { weft::rpc_sync("worker2", for_trainers); }), "worker0", "trainer",
                  "for_trainers");
    expect_denied(error_of([] { weft::rpc_sync("worker2", open_to_all); }), "worker0", "trainer",
                  "open_to_all");
    EXPECT_EQ(weft::rpc_sync("worker1", open_to_all), 1);         // it has no policy
    const RRef<Store> store = weft::remote<Store>("worker2", 5);  // its Access stays
    EXPECT_EQ(store.rpc_sync(&Store::get), 5);
  }
  {
    const WorkerScope scope(world[1]);
    EXPECT_EQ(weft::rpc_sync("worker2", for_trainers), 3);
  }
  world.shutdown_all();
}

TEST_F(PolicyFileTest, ConcernsOperators) {
  std::ofstream(file()) << R"({"roles": ["trainer", "evaluator", "default"],
      "rules": [{"functions": "aten", "roles": ["trainer"]}], "default": "any"})";
  WorkerWorld world(
      3, with_roles(TransportKind::kInproc, [file = file()](size_t rank, WorkerOptions& options) {
        options.allow_operators = {"aten::neg"};
        if (rank == 2) options.policy_file = file;
      }));
  for (size_t rank = 0; rank < 2; ++rank) {
    const WorkerScope scope(world[rank]);
    const absl::Status status =
        error_of([] { weft::rpc_sync("worker2", weft::aten("aten::neg"), at::ones({2})); });
    EXPECT_EQ(status.ok(), rank == 0) << status;
    EXPECT_TRUE(rank == 0 || absl::IsPermissionDenied(status)) << status;
  }
  world.shutdown_all();
}

TEST_F(PolicyFileTest, IsNamedByAVariable) {
  const std::vector<std::pair<const char*, const char*>> place = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  for (const auto& [name, value] : place) ::setenv(name, value, 1);
  ::setenv("WEFT_POLICY_FILE", "/site.json", 1);
  EXPECT_EQ(WorkerOptions::from_env().policy_file, "/site.json");
  ::setenv("WEFT_POLICY_FILE", "", 1);
  EXPECT_THAT(std::string(error_of([] { WorkerOptions::from_env(); }).message()),
              HasSubstr("WEFT_POLICY_FILE is set and empty"));
  ::unsetenv("WEFT_POLICY_FILE");
  for (const auto& [name, value] : place) ::unsetenv(name);
}

TEST_F(PolicyFileTest, KeepsAWorkerFromJoiningIfItIsWrong) {
  EXPECT_THAT(std::string(join_alone("{").message()), HasSubstr(file()));
  EXPECT_THAT(
      std::string(join_alone(R"({"roles": ["trainer"], "rules": [], "default": "any"})").message()),
      HasSubstr("worker 'worker0' has role 'default'"));
  EXPECT_THAT(
      std::string(join_alone(R"({"roles": ["default"], "rules": [], "default": "any"})").message()),
      HasSubstr("the Access of 'access_test::"));
  EXPECT_THAT(std::string(join_alone(R"({"roles": ["default", "trainer", "evaluator"],
                                         "rules": [{"functions": "typo::*", "roles": "any"}],
                                         "default": "any"})")
                              .message()),
              HasSubstr("'typo::*' fits no function"));
}

}  // namespace access_test
