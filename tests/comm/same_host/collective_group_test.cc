#include "weft/comm/same_host/collective_group.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/thread.h"
#include "weft/tests/comm/operations.h"
#include "weft/tests/comm/ranks.h"

namespace weft::comm_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::all_reduce;
using testing::barrier;
using ::testing::HasSubstr;
using testing::in_time;
using testing::message;
using testing::numbers;
using testing::part_of;
using testing::Ranks;
using testing::run;
using testing::sum_in_order;

class EverySize : public ::testing::TestWithParam<std::tuple<int, size_t>> {};

TEST_P(EverySize, SumsAreTheSameBitsOnAllRanksAndInOneProcess) {
  const auto [ranks, count] = GetParam();
  Ranks group(ranks);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<double>> all;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(numbers(static_cast<uint64_t>(100 * round + rank), count));
    }
    const std::vector<double> truth = sum_in_order(all);
    group.each(
        [&](int rank) { EXPECT_EQ(run(group[rank], all_reduce(all[rank])), absl::OkStatus()); });
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(all[rank], truth) << "rank " << rank;
  }
}
INSTANTIATE_TEST_SUITE_P(Group, EverySize,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5),
                                            ::testing::Values(0, 1, 7, kSlotBytes / 8,
                                                              kSlotBytes / 8 + 1, kStageBytes / 8,
                                                              2 * kStageBytes / 8 + 3,
                                                              5 * kStageBytes / 8)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "Ranks",
                                               std::get<1>(info.param), "Elements");
                         });

// Each rank takes a piece of its own from each other rank. The pieces may have any size.
TEST(CollectiveGroupTest, PullsComeFromWhereverTheyLie) {
  constexpr int kRanks = 4;
  constexpr size_t kSizes[kRanks] = {10, kSlotBytes, kSlotBytes + 1, 3 * kStageBytes + 17};
  Ranks group(kRanks);
  const auto byte_at = [](int rank, size_t at) {
    return static_cast<std::byte>((at * 31 + static_cast<size_t>(rank) * 7) % 251);
  };
  group.each([&](int rank) {
    std::vector<std::byte> mine(kSizes[rank]);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = byte_at(rank, i);
    std::vector<std::vector<std::byte>> taken(kRanks);
    Operation operation;
    operation.label = "pull";
    operation.parts = {{mine.data(), mine.size() / 3},
                       {mine.data() + mine.size() / 3, mine.size() - mine.size() / 3}};
    for (int other = 0; other < kRanks; ++other) {
      if (other == rank) continue;
      const size_t offset = kSizes[other] / 5 * static_cast<size_t>(rank);
      taken[other].resize(kSizes[other] - offset);
      operation.pulls.push_back({other, offset, taken[other].size(), taken[other].data()});
    }
    EXPECT_EQ(run(group[rank], std::move(operation)), absl::OkStatus());
    for (int other = 0; other < kRanks; ++other) {
      const size_t offset = kSizes[other] / 5 * static_cast<size_t>(rank);
      for (size_t i = 0; i < taken[other].size(); ++i) {
        ASSERT_EQ(taken[other][i], byte_at(other, offset + i)) << "from " << other << " at " << i;
      }
    }
  });
}

TEST(CollectiveGroupTest, SumsAPartAtOneRankAlone) {
  constexpr size_t kCount = 2 * kStageBytes / 8 + 100;
  Ranks group(3);
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(numbers(static_cast<uint64_t>(rank), kCount));
  const std::vector<double> truth = sum_in_order(all);
  const std::vector<std::vector<double>> before = all;
  group.each([&](int rank) {
    const size_t first = kCount / 3 * static_cast<size_t>(rank);
    const size_t count = rank == 2 ? kCount - first : kCount / 3;
    std::vector<double> sums(count);
    Operation operation = all_reduce(all[rank]);
    operation.label = "reduce_scatter(sum, float64)";
    operation.sum = Operation::Sum::kHere;
    operation.first = first;
    operation.count = count;
    operation.sum_to = part_of(sums).data;
    EXPECT_EQ(run(group[rank], std::move(operation)), absl::OkStatus());
    EXPECT_TRUE(std::equal(sums.begin(), sums.end(), truth.begin() + static_cast<long>(first)));
  });
  EXPECT_EQ(all, before);
}

TEST(CollectiveGroupTest, ManyOperationsOfAllSizesUnderWayAtOnce) {
  constexpr int kRanks = 3;
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  std::vector<size_t> counts;
  for (int i = 0; i < 200; ++i) {
    counts.push_back(random() % 20 == 0 ? random() % (3 * kStageBytes / 8) : random() % 500);
  }
  Ranks group(kRanks);
  std::vector<std::vector<std::vector<double>>> data(kRanks);
  std::vector<std::vector<double>> truth;
  for (size_t i = 0; i < counts.size(); ++i) {
    std::vector<std::vector<double>> all;
    for (int rank = 0; rank < kRanks; ++rank) {
      all.push_back(numbers(i * 10 + static_cast<size_t>(rank), counts[i]));
      data[rank].push_back(all.back());
    }
    truth.push_back(sum_in_order(all));
  }
  group.each([&](int rank) {
    std::vector<std::shared_ptr<CollectiveGroup::Work>> works;
    for (std::vector<double>& one : data[rank]) {
      works.push_back(group[rank].start(all_reduce(one), in_time()));
    }
    for (const auto& work : works) EXPECT_EQ(group[rank].wait(work, in_time()), absl::OkStatus());
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < counts.size(); ++i) {
      EXPECT_EQ(data[rank][i], truth[i])
          << "rank " << rank << ", operation " << i << ", seed " << seed;
    }
  }
}

TEST(CollectiveGroupTest, GoesOnThoughNobodyWaits) {
  Ranks group(2);
  std::vector<std::vector<double>> all = {numbers(1, 500'000), numbers(2, 500'000)};
  const std::vector<double> truth = sum_in_order(all);
  std::atomic<int> told = 0;
  group.each([&](int rank) {
    const auto work = group[rank].start(all_reduce(all[rank]), in_time());
    group[rank].when_done(work, [&told] { ++told; });
    const auto deadline = in_time();
    while (!work->done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(work->done());
    EXPECT_EQ(work->status(), absl::OkStatus());
  });
  EXPECT_EQ(all[0], truth);
  EXPECT_EQ(all[1], truth);
  group.end(0);
  group.end(1);
  EXPECT_EQ(told, 2);
}

// Work that has a callback goes on at once, whatever the group's patience. That holds even if
// another thread, which waits for other work, has led the group meanwhile.
TEST(CollectiveGroupTest, WorkWithACallbackGoesOnAtOnceAfterAWaitForOtherWork) {
  CollectiveGroup::Options options;
  options.patience = std::chrono::hours(1);
  options.tick = std::chrono::hours(1);  // a leading thread sleeps once, and no tick wakes it
  options.spin = seconds(0);
  std::promise<void> told;
  Ranks group(2, options);
  const auto slept = [&](uint64_t times) {
    const auto deadline = in_time();
    while (group[0].counts().slept < times && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  };
  const auto first = group[0].start(barrier(), in_time());
  const auto second = group[0].start(barrier(), in_time());
  group[0].when_done(second, [&told] { told.set_value(); });
  slept(1);  // the group's own thread leads
  std::thread waits([&] { EXPECT_EQ(group[0].wait(first, in_time()), absl::OkStatus()); });
  slept(2);  // that thread has handed the lead to the waiting one
  EXPECT_EQ(run(group[1], barrier()), absl::OkStatus());
  waits.join();
  EXPECT_EQ(run(group[1], barrier()), absl::OkStatus());
  EXPECT_EQ(told.get_future().wait_until(in_time()), std::future_status::ready);
}

TEST(CollectiveGroupTest, ARankThatGetsNoThreadFailsTheGroupWithItsReason) {
  const ThreadLimit one(1);  // one thread for two ranks
  Ranks group(2);
  std::atomic<int> refused = 0;
  group.each([&](int rank) {
    const absl::Status status = run(group[rank], barrier());
    EXPECT_FALSE(status.ok());
    if (absl::IsResourceExhausted(status)) ++refused;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("no thread can be started for a process group"));
  });
  EXPECT_EQ(refused, 1);
}

TEST(CollectiveGroupTest, WithoutAThreadForCallbacksTheGroupFailsAndTheyAreCalled) {
  Ranks group(2);
  std::vector<double> mine = numbers(1, 10), others = numbers(2, 10);
  const ThreadLimit none(0);
  const auto work = group[0].start(all_reduce(mine), in_time());
  int told = 0;
  group[0].when_done(work, [&] { ++told; });
  EXPECT_EQ(told, 1);
  ASSERT_TRUE(work->done());
  EXPECT_TRUE(absl::IsResourceExhausted(work->status())) << work->status();
  (void)run(group[1], all_reduce(others));  // rank 0's contribution may suffice
  EXPECT_THAT(std::string(run(group[1], barrier()).message()),
              HasSubstr("no thread can be started for the callbacks"));
}

TEST(CollectiveGroupTest, ACallbackThatWaitsForAnotherGoesOnOnceThereIsAThread) {
  Ranks group(1);
  const auto work = group[0].start(barrier(), in_time());
  auto one = std::make_unique<ThreadLimit>(1);
  std::atomic<bool> first = false, second = false;
  group[0].when_done(work, [&] {
    first = true;
    first.notify_all();
    second.wait(false);
  });
  first.wait(false);
  group[0].when_done(work, [&] {
    second = true;
    second.notify_all();
  });
  EXPECT_GE(one->refused(), 1);
  EXPECT_FALSE(second);
  one.reset();
  second.wait(false);
}

TEST(CollectiveGroupTest, ManyThreadsWaitForTheSameWork) {
  Ranks group(2);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<double>> all = {numbers(1, 1000), numbers(2, 1000)};
    group.each([&](int rank) {
      const auto work = group[rank].start(all_reduce(all[rank]), in_time());
      std::vector<std::thread> waiters;
      for (int i = 0; i < 4; ++i) {
        waiters.emplace_back(
            [&] { EXPECT_EQ(group[rank].wait(work, in_time()), absl::OkStatus()); });
      }
      for (std::thread& waiter : waiters) waiter.join();
    });
    EXPECT_EQ(all[0], all[1]);
  }
}

TEST(CollectiveGroupTest, DifferentOperationsAreNamedOnEveryRank) {
  Ranks group(3);
  std::vector<std::vector<double>> all = {numbers(1, 10), numbers(2, 10), numbers(3, 11)};
  group.each([&](int rank) {
    const absl::Status status = run(group[rank], all_reduce(all[rank]));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("of shape [10]"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("of shape [11]"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 all_reduce(sum, float64)"));
    // A group that has failed stays failed.
    EXPECT_EQ(run(group[rank], barrier()), status);
  });
}

TEST(CollectiveGroupTest, WhoDoesNotComeIsNamedInTime) {
  Ranks group(3);
  group.each([&](int rank) {
    if (rank == 1) return;
    const auto soon = std::chrono::steady_clock::now() + milliseconds(50);
    const auto work = group[rank].start(barrier(), soon);
    const absl::Status status = group[rank].wait(work, in_time());
    if (rank == 0) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("barrier"));
  });
}

TEST(CollectiveGroupTest, WhoLeavesIsNamedToThoseWhoWaitForIt) {
  Ranks group(3);
  group.each([&](int rank) {
    EXPECT_EQ(run(group[rank], barrier()), absl::OkStatus());
    if (rank == 1) {
      group.end(1);
      return;
    }
    std::vector<double> data = numbers(1, 300'000);
    const absl::Status status = run(group[rank], all_reduce(data));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  });
}

// All other ranks complete the operation although one rank has left.
TEST(CollectiveGroupTest, WhoHasDoneItsPartMayLeave) {
  for (int round = 0; round < 20; ++round) {
    Ranks group(4);
    std::vector<std::vector<double>> all(4, numbers(1, 200'000));
    group.each([&](int rank) {
      EXPECT_EQ(run(group[rank], all_reduce(all[rank])), absl::OkStatus());
      group.end(rank);
    });
  }
}

TEST(CollectiveGroupTest, AbortEndsTheWaitOfEveryRank) {
  Ranks group(3);
  group.each([&](int rank) {
    if (rank == 2) {
      group[2].abort(absl::CancelledError("enough"));
      EXPECT_TRUE(absl::IsCancelled(run(group[2], barrier())));
      return;
    }
    const absl::Status status = run(group[rank], barrier());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("enough"));
  });
}

TEST(CollectiveGroupTest, AWaitMayBeShorterThanTheWork) {
  Ranks group(2);
  const auto work = group[0].start(barrier(), in_time());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      group[0].wait(work, std::chrono::steady_clock::now() + milliseconds(5))));
  EXPECT_FALSE(work->done());
  std::thread other([&] { EXPECT_EQ(run(group[1], barrier()), absl::OkStatus()); });
  EXPECT_EQ(group[0].wait(work, in_time()), absl::OkStatus());
  other.join();
}

TEST(CollectiveGroupTest, RunsWithoutLookingBeforeItSleeps) {
  CollectiveGroup::Options options;
  options.spin = seconds(0);
  Ranks group(3, options);
  group.each([&](int rank) {
    for (int i = 0; i < 500; ++i) ASSERT_EQ(run(group[rank], barrier()), absl::OkStatus());
  });
}

// ---- messages between two ranks

TEST(MessagesTest, GoToTheReceiveOfTheirSenderAndTag) {
  Ranks group(3);
  group.each([&](int rank) {
    std::vector<std::shared_ptr<CollectiveGroup::Work>> works;
    std::vector<std::vector<double>> sent, received;
    for (int other = 0; other < 3; ++other) {
      for (int tag = 0; tag < 20; ++tag) {
        const auto size = static_cast<size_t>(tag % 5 == 4 ? 100'000 : tag);
        sent.push_back(numbers(static_cast<uint64_t>(1000 * rank + 100 * other + tag), size));
        received.emplace_back(size);
      }
    }
    // The receives come in the opposite order of tags.
    for (int other = 0; other < 3; ++other) {
      if (other == rank) continue;
      for (int tag = 0; tag < 20; ++tag) {
        const auto at = static_cast<size_t>(20 * other + tag);
        works.push_back(group[rank].send(message(other, tag, sent[at]), in_time()));
      }
      for (int tag = 19; tag >= 0; --tag) {
        const auto at = static_cast<size_t>(20 * other + tag);
        works.push_back(group[rank].receive(message(other, tag, received[at]), in_time()));
      }
    }
    for (const auto& work : works) EXPECT_EQ(group[rank].wait(work, in_time()), absl::OkStatus());
    for (int other = 0; other < 3; ++other) {
      if (other == rank) continue;
      for (int tag = 0; tag < 20; ++tag) {
        const auto at = static_cast<size_t>(20 * other + tag);
        EXPECT_EQ(received[at], numbers(static_cast<uint64_t>(1000 * other + 100 * rank + tag),
                                        received[at].size()));
      }
    }
  });
}

// On return, rank 1 has read all that rank 0 sent so far, and has kept the messages without a
// receive.
void read_and_keep(Ranks& group) {
  std::vector<double> mark = {0.0};
  const auto sent = group[0].send(message(1, 99, mark), in_time());
  const auto come = group[1].receive(message(0, 99, mark), in_time());
  ASSERT_EQ(group[1].wait(come, in_time()), absl::OkStatus());
  ASSERT_EQ(group[0].wait(sent, in_time()), absl::OkStatus());
}

// Once with many receives that were posted first, and once with many messages that came first.
TEST(MessagesTest, OfOneTagKeepTheirOrder) {
  for (const bool receives_first : {true, false}) {
    Ranks group(2);
    std::vector<std::vector<double>> out, in(300, {-1.0});
    for (size_t i = 0; i < in.size(); ++i) out.push_back({static_cast<double>(i)});
    std::vector<std::shared_ptr<CollectiveGroup::Work>> receives;
    const auto receive_all = [&] {
      for (std::vector<double>& one : in) {
        receives.push_back(group[1].receive(message(0, 7, one), in_time()));
      }
    };
    if (receives_first) receive_all();
    for (std::vector<double>& one : out) (void)group[0].send(message(1, 7, one), in_time());
    read_and_keep(group);
    if (!receives_first) receive_all();
    for (const auto& work : receives) ASSERT_EQ(group[1].wait(work, in_time()), absl::OkStatus());
    EXPECT_EQ(in, out) << (receives_first ? "receives first" : "messages first");
  }
}

// The messages come in another order than the ranks', and a message with another tag waits beside
// them.
TEST(MessagesTest, AnyoneIsWhoeverComesFirst) {
  Ranks group(4);
  std::vector<double> other = {-1.0};
  (void)group[1].send(message(0, 4, other), in_time());
  for (const int sender : {3, 1, 2, 2, 3}) {
    std::vector<double> in(1), out = {static_cast<double>(sender)};
    const auto come = group[0].receive(message(Channels::kAnyone, 3, in), in_time());
    const auto sent = group[sender].send(message(0, 3, out), in_time());
    ASSERT_EQ(group[0].wait(come, in_time()), absl::OkStatus());
    ASSERT_EQ(group[sender].wait(sent, in_time()), absl::OkStatus());
    EXPECT_EQ(come->peer(), sender);
    EXPECT_EQ(in, out);
  }
}

TEST(MessagesTest, GoBesideCollectives) {
  Ranks group(2);
  group.each([&](int rank) {
    std::vector<double> out = numbers(static_cast<uint64_t>(rank), 400'000), in(out.size());
    std::vector<double> sums = numbers(5, 400'000);
    const auto send = group[rank].send(message(1 - rank, 0, out), in_time());
    const auto sum = group[rank].start(all_reduce(sums), in_time());
    const auto receive = group[rank].receive(message(1 - rank, 0, in), in_time());
    EXPECT_EQ(group[rank].wait(receive, in_time()), absl::OkStatus());
    EXPECT_EQ(group[rank].wait(sum, in_time()), absl::OkStatus());
    EXPECT_EQ(group[rank].wait(send, in_time()), absl::OkStatus());
    EXPECT_EQ(in, numbers(static_cast<uint64_t>(1 - rank), in.size()));
  });
}

TEST(MessagesTest, WaitForNoCollectiveNorItForThem) {
  Ranks group(2);
  std::vector<double> out = numbers(1, 400'000), in(out.size()), last(1);
  const auto late = group[0].receive(message(1, 5, last), in_time());
  const auto early = group[0].start(barrier(), in_time());
  group.each([&](int rank) {
    const auto work = rank == 0 ? group[0].send(message(1, 0, out), in_time())
                                : group[1].receive(message(0, 0, in), in_time());
    EXPECT_EQ(group[rank].wait(work, in_time()), absl::OkStatus());
  });
  EXPECT_EQ(in, out);
  EXPECT_FALSE(early->done());
  EXPECT_EQ(run(group[1], barrier()), absl::OkStatus());
  EXPECT_EQ(group[0].wait(early, in_time()), absl::OkStatus());
  EXPECT_FALSE(late->done());
  out = {2.5};
  (void)group[1].send(message(0, 5, out), in_time());
  EXPECT_EQ(group[0].wait(late, in_time()), absl::OkStatus());
  EXPECT_EQ(last[0], 2.5);
}

TEST(MessagesTest, AnotherLengthIsNamed) {
  for (const bool receive_first : {true, false}) {
    Ranks group(2);
    std::vector<double> out(4), in(5);
    std::shared_ptr<CollectiveGroup::Work> work;
    if (receive_first) work = group[1].receive(message(0, 9, in), in_time());
    (void)group[0].send(message(1, 9, out), in_time());
    if (!receive_first) {
      read_and_keep(group);
      work = group[1].receive(message(0, 9, in), in_time());
    }
    const absl::Status status = group[1].wait(work, in_time());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 sent 32 bytes to rank 1 (tag 9), whose receive takes 40"));
  }
}

TEST(MessagesTest, WhoeverIsWaitedForAndLeavesIsNamed) {
  Ranks group(2);
  group.each([&](int rank) {
    std::vector<double> data(rank == 0 ? 3 : 1'000'000);
    if (rank == 0) {
      const auto first = group[0].send(message(1, 1, data), in_time());
      EXPECT_EQ(group[0].wait(first, in_time()), absl::OkStatus());
      group.end(0);
      return;
    }
    // Rank 0's message is delivered although rank 0 has left since.
    const auto large = group[1].send(message(0, 2, data), in_time());
    const absl::Status status = group[1].wait(large, in_time());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("send of 8000000 bytes to rank 0 (tag 2)"));
  });
}

TEST(MessagesTest, WhatWasSentByWhoHasLeftArrives) {
  for (int round = 0; round < 50; ++round) {
    Ranks group(2);
    group.each([&](int rank) {
      std::vector<double> data = {1.5, 2.5};
      if (rank == 0) {
        const auto work = group[0].send(message(1, 1, data), in_time());
        EXPECT_EQ(group[0].wait(work, in_time()), absl::OkStatus());
        group.end(0);
        return;
      }
      std::vector<double> in(2);
      const auto work = group[1].receive(message(0, 1, in), in_time());
      EXPECT_EQ(group[1].wait(work, in_time()), absl::OkStatus());
      EXPECT_EQ(in, data);
    });
  }
}

TEST(MessagesTest, WhoLeavesInTheMiddleIsNamedToAReceiveFromAnyone) {
  Ranks group(3);
  std::vector<double> out(1'000'000), in(1'000'000);
  const auto work = group[0].receive(message(Channels::kAnyone, 1, in), in_time());
  const auto sent = group[1].send(message(0, 1, out), in_time());
  group[0].poll();  // the operation has begun
  group.end(1);
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status status = group[0].wait(work, in_time());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("from rank 1 (tag 1)"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));
}

TEST(MessagesTest, AReceiveFromAnyoneSaysWhyNobodyIsLeft) {
  Ranks group(3);
  std::vector<double> in(2);
  const auto work = group[0].receive(message(Channels::kAnyone, 1, in), in_time());
  group[1].abort(absl::CancelledError("it had enough"));
  group.end(2);
  const absl::Status status = group[0].wait(work, in_time());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no other rank is left: rank "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("it had enough"));
}

TEST(MessagesTest, NobodyWhoSendsIsWaitedForNoLongerThanAllowed) {
  Ranks group(2);
  std::vector<double> in(2);
  const auto work =
      group[1].receive(message(0, 1, in), std::chrono::steady_clock::now() + milliseconds(30));
  const absl::Status status = group[1].wait(work, in_time());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("receive of 16 bytes from rank 0 (tag 1)"));
}

}  // namespace
}  // namespace weft::comm_internal
