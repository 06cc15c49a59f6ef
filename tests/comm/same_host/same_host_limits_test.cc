// The same-host backend's memory, its waiting, its time limits and its destruction.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "weft/comm/internal/store_notices.h"
#include "weft/comm/same_host_backend.h"
#include "weft/tests/comm/backend_ranks.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using testing::backend_options;
using testing::BackendPtr;
using testing::counts_of;
using testing::failure_of;
using ::testing::HasSubstr;
using testing::Tensors;
using testing::values;
using testing::with_backends;
using testing::with_ranks;

// ---- memory

TEST(SameHostMemoryTest, WhatLiesInItsMemoryIsNotCopied) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    constexpr int64_t kCount = 500'000;
    Tensors there = {backend.allocateTensor(kCount, at::kFloat)};
    const void* const data = there[0].data_ptr();
    there[0].fill_(rank + 1);
    const auto before = counts_of(backend);
    backend.allreduce(there, {})->wait();
    const auto after = counts_of(backend);
    EXPECT_EQ(after.in_arenas, before.in_arenas + 1);
    EXPECT_EQ(after.copied_bytes, before.copied_bytes);
    EXPECT_EQ(there[0].data_ptr(), data);
    EXPECT_TRUE(at::equal(there[0], at::full({kCount}, 3.0)));
    // A tensor in private memory is copied, once.
    Tensors own = {values(rank, {kCount})};
    backend.allreduce(own, {})->wait();
    EXPECT_EQ(counts_of(backend).in_pieces, after.in_pieces + 1);
    EXPECT_EQ(counts_of(backend).copied_bytes, after.copied_bytes + kCount * sizeof(float));
    // A view of such a tensor lies in the arena too, like a bucket's view.
    Tensors part = {there[0].slice(0, 1000, kCount)};
    backend.allreduce(part, {})->wait();
    EXPECT_EQ(counts_of(backend).in_arenas, after.in_arenas + 1);
    EXPECT_EQ(there[0][999].item<float>(), 3);
    EXPECT_EQ(there[0][1000].item<float>(), 6);
  });
}

TEST(SameHostMemoryTest, TensorsLargerThanAnArenaHaveTheirOwn) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    constexpr int64_t kLarge = (int64_t{72} << 20) / 4, kSmall = (int64_t{40} << 20) / 4;
    // 72 MiB, and two of 40 MiB that do not fit one arena of 64 MiB.
    std::vector<Tensors> all;
    for (const int64_t count : {kLarge, kSmall, kSmall}) {
      all.push_back({backend.allocateTensor(count, at::kFloat)});
      all.back()[0].fill_(static_cast<float>(rank + 1));
    }
    for (Tensors& one : all) backend.allreduce(one, {})->wait();
    EXPECT_EQ(counts_of(backend).in_arenas, 3);
    for (const Tensors& one : all) {
      EXPECT_EQ(one[0].min().item<float>(), 3);
      EXPECT_EQ(one[0].max().item<float>(), 3);
    }
    // Memory that was freed is used again.
    const void* const first = all[0][0].data_ptr();
    all[0].clear();
    EXPECT_EQ(backend.allocateTensor(kLarge, at::kFloat).data_ptr(), first);
  });
}

TEST(SameHostMemoryTest, LargePiecesComeFromPrivateMemoryAndFromArenas) {
  with_ranks(3, [](int rank, c10d::Backend& backend) {
    constexpr int64_t kCount = 800'000;  // 3.05 MiB
    for (const bool resident : {false, true}) {
      Tensors inputs = {resident ? backend.allocateTensor(kCount, at::kFloat)
                                 : at::empty({kCount})};
      inputs[0].copy_(values(rank, {kCount}));
      std::vector<Tensors> outputs = {{}};
      for (int i = 0; i < 3; ++i) outputs[0].push_back(at::zeros({kCount}));
      backend.allgather(outputs, inputs, {})->wait();
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(outputs[0][i], values(i, {kCount})));
    }
  });
}

TEST(SameHostMemoryTest, CoalescedCallsOfAllKindsMoveTheirLists) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    for (const int64_t count : {5, 400'000}) {
      const auto of = [&](int one, int which) { return values(one + 10 * which, {count}); };
      Tensors inputs = {of(rank, 0), of(rank, 1)};
      std::vector<Tensors> lists = {{at::zeros({count}), at::zeros({count})},
                                    {at::zeros({count}), at::zeros({count})}};
      backend.allgather_coalesced(lists, inputs, {})->wait();
      Tensors wholes = {at::zeros({2 * count}), at::zeros({2 * count})};
      backend.allgather_into_tensor_coalesced(wholes, inputs, {})->wait();
      for (int which = 0; which < 2; ++which) {
        for (int one = 0; one < 2; ++one) {
          EXPECT_TRUE(at::equal(lists[which][one], of(one, which)));
        }
        EXPECT_TRUE(at::equal(wholes[which], at::cat({of(0, which), of(1, which)})));
      }
      Tensors parts = {at::zeros({count}), at::zeros({count})};
      backend.reduce_scatter_tensor_coalesced(parts, wholes, {})->wait();
      for (int which = 0; which < 2; ++which) {
        EXPECT_TRUE(at::equal(parts[which], 2 * of(rank, which)));
      }
    }
  });
}

// ---- waiting

// Counts how often this rank has begun to wait.
uint64_t waits_of(c10d::Backend& backend) {
  const auto counts = counts_of(backend);
  return counts.looked + counts.slept;
}

constexpr int kRounds = 50;

// Rank 0 waits for rank 1 in each of kRounds, for a message or at a barrier. Rank 1 comes only once
// rank 0 waits, however busy the machine is. Returns rank 0's counts.
comm_internal::CollectiveGroup::Counts wait_in_rounds(bool messages,
                                                      const SameHostOptions& options) {
  c10d::Backend* waiter = nullptr;       // rank 0's backend
  std::vector<uint64_t> waits(kRounds);  // of rank 0, before each round
  std::atomic<int> begun = 0;            // rounds; publishes the two variables above
  comm_internal::CollectiveGroup::Counts counts;
  with_ranks(
      2,
      [&](int rank, c10d::Backend& backend) {
        if (rank == 0) waiter = &backend;
        Tensors ball = {at::zeros({8})};
        for (int i = 0; i < kRounds; ++i) {
          if (rank == 0) {
            waits[i] = waits_of(backend);
            ++begun;
          } else {
            while (begun <= i) std::this_thread::yield();
            while (waits_of(*waiter) == waits[i]) std::this_thread::yield();
          }
          if (!messages) {
            backend.barrier(c10d::BarrierOptions())->wait();
          } else if (rank == 0) {
            backend.recv(ball, 1, 0)->wait();
          } else {
            backend.send(ball, 0, 0)->wait();
          }
        }
        if (rank == 0) counts = counts_of(backend);
        backend.barrier(c10d::BarrierOptions())->wait();  // rank 1 reads rank 0's backend
      },
      options);
  return counts;
}

TEST(SameHostWaitingTest, LooksWhereThatIsWorthWhileAndSleepsWhereItIsNotAllowed) {
  SameHostOptions options = backend_options();
  for (const bool messages : {false, true}) {
    SCOPED_TRACE(messages ? "messages" : "barriers");
    options.spin = std::chrono::seconds(1);
    EXPECT_GT(wait_in_rounds(messages, options).looked, 0u);
    options.spin = std::chrono::microseconds(0);
    const auto counts = wait_in_rounds(messages, options);
    EXPECT_EQ(counts.looked, 0u);
    EXPECT_GE(counts.slept, kRounds);
  }
}

// ---- time

TEST(SameHostTimeTest, LimitsFromNoneToTheLargest) {
  for (const milliseconds timeout :
       {milliseconds(0), milliseconds(-1), milliseconds::max(),
        milliseconds(std::numeric_limits<int64_t>::max() / 1'000'000)}) {
    with_ranks(2, [timeout](int rank, c10d::Backend& backend) {
      Tensors tensors = {values(rank, {4})};
      c10d::AllreduceOptions options;
      options.timeout = timeout;
      const auto work = backend.allreduce(tensors, options);
      EXPECT_TRUE(work->wait(timeout < milliseconds(0) ? milliseconds(0) : timeout));
      if (timeout < milliseconds(0)) return;
      backend.setTimeout(timeout);
      EXPECT_EQ(backend.getBackendOptions()->timeout, timeout);
      backend.barrier(c10d::BarrierOptions())->wait();
    });
  }
  // The limit also holds while the group forms. Rank 1 starts first and waits for rank 0.
  SameHostOptions options = backend_options();
  options.timeout = milliseconds::max();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::thread late;
  std::thread early([&] {
    create_same_host_backend(store, 1, 2, options)->barrier(c10d::BarrierOptions())->wait();
  });
  late = std::thread([&] {
    create_same_host_backend(store, 0, 2, options)->barrier(c10d::BarrierOptions())->wait();
  });
  early.join();
  late.join();
}

// Remembers the longest timeout that a wait was given.
class TimedStore : public c10d::HashStore {
 public:
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    longest = std::max(longest, timeout);
    HashStore::wait(keys, timeout);
  }
  milliseconds longest{0};
};

TEST(SameHostTimeTest, ALongWaitForTheStoreIsDoneInSlices) {
  const auto store = c10::make_intrusive<TimedStore>();
  comm_internal::StoreNotices notices(store, milliseconds(2));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(notices.read(3, begin + milliseconds(20)).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
  EXPECT_TRUE(notices.post(4, "here").ok());
  EXPECT_EQ(notices.read(4, std::chrono::steady_clock::time_point::max()).value_or(""), "here");
  EXPECT_EQ(store->longest, milliseconds(2));
}

TEST(SameHostTimeTest, AWaitThatIsTooShortLeavesTheWorkAsItIs) {
  with_backends(2, [](int rank, const BackendPtr& backend) {
    Tensors tensors = {values(rank, {10})};
    if (rank == 0) {
      const auto work = backend->allreduce(tensors, {});
      EXPECT_THROW(work->wait(milliseconds(1)), c10::DistBackendError);
      EXPECT_FALSE(work->isCompleted());
      Tensors go = {at::zeros({1})};
      backend->send(go, 1, 0)->wait();
      EXPECT_TRUE(work->wait(kNoTimeout));
    } else {
      Tensors go = {at::zeros({1})};
      backend->recv(go, 0, 0)->wait();
      backend->allreduce(tensors, {})->wait();
    }
    EXPECT_TRUE(at::equal(tensors[0], values(0, {10}) + values(1, {10})));
  });
}

// ---- errors

TEST(SameHostErrorsTest, HaveTheTypeOfWhoIsToBlame) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors two = {at::zeros({1}), at::zeros({1})}, one = {at::zeros({1})};
    EXPECT_THROW(backend.allreduce(two, {}), c10::ValueError);
    EXPECT_THROW(backend.send(one, rank, 0), c10::ValueError);
    EXPECT_THROW(backend.send(one, 1 - rank, -3), c10::ValueError);
    EXPECT_THROW(backend.setTimeout(milliseconds(-5)), c10::ValueError);
    EXPECT_THROW(backend.split(nullptr, {0, 7}, nullptr), c10::ValueError);
    c10d::AllreduceOptions options;
    options.timeout = milliseconds(-7);
    EXPECT_THROW(backend.allreduce(one, options), c10::ValueError);
    // None of these errors has reached the group.
    EXPECT_EQ(backend.getError(), c10d::ErrorType::SUCCESS);
    backend.barrier(c10d::BarrierOptions())->wait();
    Tensors other = {at::zeros({1 + rank})};
    const auto work = backend.allreduce(other, {});
    EXPECT_THROW(work->wait(kNoTimeout), c10::DistBackendError);
    EXPECT_FALSE(work->isSuccess());
    EXPECT_TRUE(work->isCompleted());
    EXPECT_THROW(std::rethrow_exception(work->exception()), c10::DistBackendError);
    const auto future = work->getFuture();
    EXPECT_THROW(future->waitAndThrow(), std::exception);
    EXPECT_THROW(backend.barrier(c10d::BarrierOptions())->wait(), c10::DistBackendError);
  });
}

TEST(SameHostErrorsTest, AnotherRanksEndIsARemoteErrorAndLatenessATimeout) {
  with_backends(2, [](int rank, BackendPtr backend) {
    backend->barrier(c10d::BarrierOptions())->wait();
    if (rank == 0) return;  // it leaves the group
    EXPECT_THAT(failure_of([&] { backend->barrier(c10d::BarrierOptions())->wait(); }),
                HasSubstr("rank 0"));
    EXPECT_EQ(backend->getError(), c10d::ErrorType::REMOTE_ERROR);
  });
  with_backends(2, [](int rank, const BackendPtr& backend) {
    if (rank == 1) {
      c10d::BarrierOptions options;
      options.timeout = milliseconds(20);
      EXPECT_THAT(failure_of([&] { backend->monitoredBarrier(options, false); }),
                  HasSubstr("rank 0 did not come"));
      EXPECT_EQ(backend->getError(), c10d::ErrorType::TIMEOUT);
    } else {
      Tensors never = {at::zeros({1})};
      EXPECT_THAT(failure_of([&] { backend->recv(never, 1, 0)->wait(); }), HasSubstr("rank 1"));
      EXPECT_EQ(backend->getError(), c10d::ErrorType::REMOTE_ERROR);
    }
  });
}

// ---- destruction

TEST(SameHostEndTest, WhatAllHaveStartedIsFinishedByABackendThatEnds) {
  for (int round = 0; round < 10; ++round) {
    c10::intrusive_ptr<c10d::Work> works[3];
    Tensors tensors[3];
    with_backends(3, [&](int rank, BackendPtr backend) {
      for (int i = 0; i < 20; ++i) {
        tensors[rank] = {values(rank, {30'000})};
        works[rank] = backend->allreduce(tensors[rank], {});
      }
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(works[rank]->isSuccess());
      EXPECT_TRUE(works[rank]->wait(kNoTimeout));
      EXPECT_TRUE(at::equal(tensors[rank][0],
                            values(0, {30'000}) + values(1, {30'000}) + values(2, {30'000})));
    }
  }
}

TEST(SameHostEndTest, WhatOthersDoNotStartIsCancelled) {
  c10::intrusive_ptr<c10d::Work> work, message;
  Tensors tensors = {at::zeros({3})}, never = {at::zeros({3})};
  with_backends(2, [&](int rank, BackendPtr backend) {
    if (rank == 0) {
      work = backend->allreduce(tensors, {});
      message = backend->recv(never, 1, 0);
      backend.reset();
      return;
    }
    EXPECT_THAT(failure_of([&] { backend->recv(never, 0, 0)->wait(); }),
                HasSubstr("rank 0 has left the group"));
  });
  EXPECT_TRUE(work->isCompleted());
  EXPECT_THAT(failure_of([&] { work->wait(kNoTimeout); }),
              AnyOf(HasSubstr("has left the group"), HasSubstr("has given up")));
  EXPECT_THROW(message->wait(kNoTimeout), c10::DistBackendError);
}

// ---- what c10d asks for

TEST(SameHostInterfaceTest, SplitsIntoGroupsOfTheirOwn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  with_backends(4, [&](int rank, const BackendPtr& backend) {
    ASSERT_TRUE(backend->supportsSplitting());
    const std::vector<int> even = {2, 0}, odd = {1, 3};
    const std::vector<int>& mine = rank % 2 == 0 ? even : odd;
    EXPECT_EQ(backend->split(store, rank % 2 == 0 ? odd : even, backend->getBackendOptions()),
              nullptr);
    const auto own = c10::make_intrusive<c10d::PrefixStore>(rank % 2 == 0 ? "even" : "odd", store);
    auto options = backend->getBackendOptions();
    options->timeout = milliseconds(12'345);
    const BackendPtr part = backend->split(own, mine, options);
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->getRank(), mine[0] == rank ? 0 : 1);
    EXPECT_EQ(part->getSize(), 2);
    EXPECT_EQ(part->getBackendOptions()->timeout, milliseconds(12'345));
    EXPECT_EQ(backend->getBackendOptions()->timeout, milliseconds(60'000));
    EXPECT_EQ(part->getBackendOptions()->backend, "weft_same_host");
    Tensors tensors = {values(rank, {4})};
    part->allreduce(tensors, {})->wait();
    EXPECT_TRUE(at::equal(tensors[0], values(mine[0], {4}) + values(mine[1], {4})));
    backend->barrier(c10d::BarrierOptions())->wait();
  });
}

TEST(SameHostInterfaceTest, CallsAreCountedBeforeTheyStart) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    backend.setSequenceNumberForGroup();
    backend.enableCollectivesTiming();
    Tensors tensors = {values(rank, {4})};
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(backend.getSequenceNumberForGroup(), i);
      const auto work = backend.allreduce(tensors, {});
      EXPECT_EQ(work->getSequencenumber(), i);
      EXPECT_EQ(work->retrieveOpType(), c10d::OpType::ALLREDUCE);
      work->wait();
    }
  });
}

}  // namespace
}  // namespace weft
