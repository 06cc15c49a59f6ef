// Checks what a process group refuses, and what it reports when ranks fail, over every backend.
#include <atomic>
#include <barrier>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/comm/gloo_backend.h"
#include "weft/comm/internal/joining.h"
#include "weft/tests/comm/group_kinds.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class ProcessGroupErrors : public GroupTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, ProcessGroupErrors, ::testing::ValuesIn(all_kinds()), name_of);

TEST_P(ProcessGroupErrors, BadArgumentsAreNamedAndDoNoHarm) {
  run([&](Group group) {
    const int n = size(), rank = group->rank();
    const at::Tensor tensor = at::ones({3});
    const std::string nobody = absl::StrCat("no rank ", n, " in a group of ", n);
    const auto expect = [](const std::string& text, const std::function<void()>& call) {
      EXPECT_THROW(call(), c10::ValueError) << text;
      EXPECT_THAT(failure_of(call), HasSubstr(text));
    };
    expect(nobody, [&] { group->broadcast(tensor, n); });
    expect(nobody, [&] { group->reduce(tensor, n); });
    expect(nobody, [&] { group->gather(tensor, n); });
    expect(nobody, [&] { group->scatter(tensor, {}, n); });
    expect("no rank -1", [&] { group->broadcast(tensor, -1); });
    expect("outputs", [&] {
      std::vector<Tensors> outputs(1);
      Tensors inputs = {tensor};
      group->backend()->gather(outputs, inputs, {.rootRank = rank});
    });
    expect(absl::StrCat("one list of ", n, " inputs"),
           [&] { group->scatter(tensor, Tensors(static_cast<size_t>(n) + 1, tensor), rank); });
    expect("differ",
           [&] { group->scatter(tensor, Tensors(static_cast<size_t>(n), at::ones({4})), rank); });
    expect("no peer", [&] { group->send(tensor, n); });
    expect("no peer", [&] { group->send(tensor, rank); });
    expect("no peer", [&] { group->recv(tensor, -7); });
    expect("tag", [&] { group->irecv(tensor, ProcessGroup::kAnyRank, -3); });
    expect("undefined", [&] { group->all_reduce(at::Tensor()); });
    expect("undefined", [&] { group->broadcast_coalesced({tensor, at::Tensor()}, 0); });
    expect("undefined", [&] { group->all_gather(at::Tensor()); });
    expect("undefined", [&] { group->gather(at::Tensor(), 0); });
    expect("undefined", [&] { group->send(at::Tensor(), 0); });
    expect("not supported", [&] { group->all_reduce(tensor, Op::PREMUL_SUM); });
    expect("overlaps itself", [&] { group->all_reduce(at::ones({1}).expand({3})); });
    expect("reduce_scatter", [&] { group->reduce_scatter(tensor, at::ones({3 * n + 1})); });
    expect("reduce_scatter", [&] { group->reduce_scatter(tensor, at::ones({3 * n}, at::kInt)); });
    if (n > 1) expect("cannot share", [&] { group->all_to_all(at::ones({n}), at::ones({n + 1})); });
    expect("one type", [&] { group->all_to_all(at::ones({n}), at::ones({n}, at::kInt)); });
    expect("Sparse", [&] { group->broadcast(at::eye(3).to_sparse(), 0); });
    expect("distinct", [&] { group->new_group({0, 0}); });
    expect("at least one", [&] { group->new_group({}); });
    expect(absl::StrCat("no rank ", n), [&] { group->new_group({0, n}); });

    // All of these errors were found before an operation began.
    group->all_reduce(tensor);
    EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(n));
  });
}

TEST_P(ProcessGroupErrors, ARankThatDoesNotComeFailsTheOthersInTime) {
  if (size() == 1) return;
  const int late = size() - 1;
  std::atomic<int> waiting{late};
  run([&](Group group) {
    if (group->rank() == late) {
      for (int left = waiting; left > 0; left = waiting) waiting.wait(left);
      return;
    }
    group->backend()->setTimeout(milliseconds(500));
    const auto begin = Clock::now();
    const std::string failure = failure_of([&] { group->all_reduce(at::ones({4})); });
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));  // the group's timeout is 30 s
    EXPECT_NE(failure, "");
    if (!GetParam().gloo()) {
      EXPECT_THAT(failure, HasSubstr(absl::StrCat("rank ", late)));
    }
    --waiting;
    waiting.notify_all();
  });
}

TEST_P(ProcessGroupErrors, ARankThatIsGoneFailsTheOthersLongBeforeTheTimeout) {
  if (size() == 1) return;
  std::barrier all_have_joined(size());  // Gloo's ranks do not finish joining at the same time
  run([&](Group group) {
    all_have_joined.arrive_and_wait();
    if (group->rank() == size() - 1) return;
    const auto begin = Clock::now();
    EXPECT_NE(failure_of([&] { group->all_reduce(at::ones({4})); }), "");
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));  // the timeout is 30 s
  });
}

TEST(ProcessGroupBackendTest, DifferentOnesAreNamedBeforeAnybodyWaits) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ProcessGroupOptions options = group_options(rank, 2, store);
      options.backend = rank == 0 ? "weft" : "gloo";
      EXPECT_THAT(failure_of([&] { init_process_group(options); }),
                  HasSubstr("rank 0 asks for backend 'weft', rank 1 for 'gloo'"));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Gloo alone would abort the process here.
TEST_P(ProcessGroupErrors, DifferentSizesAreNamed) {
  if (size() == 1 || GetParam().backend == "gloo") return;
  run([&](Group group) {
    const bool differs = group->rank() == size() - 1;
    const std::string failure = failure_of([&] { group->all_reduce(at::ones({differs ? 7 : 3})); });
    EXPECT_NE(failure, "");
    if (differs) {
      EXPECT_THAT(failure, HasSubstr("[7]"));
    }
    // A group that has failed stays failed and keeps its reason.
    EXPECT_NE(failure_of([&] { group->barrier(); }), "");
  });
}

TEST(ProcessGroupOptions, ThatCannotBeAreNamedBeforeAnybodyWaits) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto expect = [&](const std::string& text,
                          const std::function<void(ProcessGroupOptions&)>& change) {
    ProcessGroupOptions options = group_options(0, 2, store);
    change(options);
    EXPECT_THROW(init_process_group(options), c10::ValueError) << text;
    EXPECT_THAT(failure_of([&] { init_process_group(options); }), HasSubstr(text));
  };
  expect("no backend is called 'mpi'", [](auto& options) { options.backend = "mpi"; });
  expect("no rank 2 in a group of 2", [](auto& options) { options.rank = 2; });
  expect("no rank -1", [](auto& options) { options.rank = -1; });
  expect("group of 0", [](auto& options) { options.world_size = 0; });
  expect("timeout is positive", [](auto& options) { options.timeout = milliseconds(0); });
  expect("spin", [](auto& options) { options.spin = std::chrono::microseconds(-1); });
}

TEST(ProcessGroupJoining, TellsWhoDidNotCome) {
  const auto begin = Clock::now();
  ProcessGroupOptions options = group_options(1, 4, c10::make_intrusive<c10d::HashStore>());
  options.timeout = milliseconds(300);
  EXPECT_THAT(failure_of([&] { init_process_group(options); }),
              HasSubstr("rank 1 of 4: rank 0, 2, 3 did not come in time"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

// Joins with these ranks and sizes, and returns each rank's failure.
std::vector<std::string> join_as(const std::vector<std::pair<int, int>>& rank_and_size) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> failures(rank_and_size.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < rank_and_size.size(); ++i) {
    threads.emplace_back([&, i] {
      failures[i] = failure_of([&] {
        const auto& [rank, size] = rank_and_size[i];
        init_process_group(group_options(rank, size, store));
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

TEST(ProcessGroupJoining, DifferentWorldSizesFailAllRanks) {
  const auto begin = Clock::now();
  for (const std::string& failure : join_as({{0, 3}, {1, 3}, {2, 4}})) {
    EXPECT_THAT(failure, HasSubstr("different world sizes: rank"));
    EXPECT_THAT(failure, HasSubstr("rank 2 of 4"));
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));  // the timeout is 60 s
}

TEST(ProcessGroupJoining, TwoThatClaimOneRankFailAllRanks) {
  for (const std::string& failure : join_as({{0, 3}, {1, 3}, {1, 3}})) {
    EXPECT_THAT(failure, HasSubstr("two processes claim rank 1 of 3"));
  }
}

// A store through which a rank learns late of rank 2, when the other ranks may already be done.
class LateStore : public c10d::PrefixStore {
 public:
  LateStore(const c10::intrusive_ptr<c10d::Store>& store, std::future<void> late)
      : PrefixStore("late", store), late_(std::move(late)) {}
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    // 100 ms are enough for a rank that waits for nobody to leave. A rank that waits for all does
    // not leave before.
    if (absl::EndsWith(keys[0], "/2")) late_.wait_for(milliseconds(100));
    PrefixStore::wait(keys, timeout);
  }
  bool hasExtendedApi() const override { return false; }

 private:
  const std::future<void> late_;
};

// Rank 1 is not done early in every round: without the barrier 8 of 20 single rounds failed.
TEST(GlooBackendTest, WhoLeavesAtOnceDoesNotEndTheConnectingOfOthers) {
  for (int round = 0; round < 4; ++round) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::promise<void> left;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        c10::intrusive_ptr<c10d::Store> own = c10::make_intrusive<c10d::PrefixStore>("late", store);
        if (rank == 0) own = c10::make_intrusive<LateStore>(store, left.get_future());
        const auto make = [&] {
          create_gloo_backend(own, rank, 3, std::chrono::seconds(30), "lo");
        };
        EXPECT_EQ(failure_of(make), "") << "rank " << rank;
        if (rank == 1) left.set_value();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Does not answer the farewells of a round before the test lets it.
class SilentStore : public c10d::HashStore {
 public:
  explicit SilentStore(std::shared_future<void> answers) : answers_(std::move(answers)) {}
  int64_t add(const std::string& key, int64_t value) override {
    if (absl::EndsWith(key, "/heard")) answers_.wait();
    return HashStore::add(key, value);
  }

 private:
  const std::shared_future<void> answers_;
};

TEST(JoiningTest, AFarewellTakesNoLongerIfTheStoreDoesNotAnswer) {
  std::promise<void> answers;
  const auto store = c10::make_intrusive<SilentStore>(answers.get_future().share());
  store->add("round/0/claims/0/0", 1);  // another process has come as rank 0
  const auto begin = Clock::now();
  EXPECT_THAT(failure_of([&] {
                comm_internal::join_group(store, {.group = "g", .rank = 0, .size = 2}, "word",
                                          std::chrono::seconds(60));
              }),
              HasSubstr("two processes claim rank 0 of 2"));
  EXPECT_LT(Clock::now() - begin, comm_internal::kFarewell + milliseconds(1500));
  answers.set_value();
}

}  // namespace
}  // namespace weft::testing
