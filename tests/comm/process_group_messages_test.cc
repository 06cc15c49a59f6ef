// Messages, barriers, asynchronous work and subgroups, the same over every backend.
#include <atomic>
#include <future>
#include <set>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>

#include "weft/tests/comm/group_kinds.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class ProcessGroupMessages : public GroupTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, ProcessGroupMessages, ::testing::ValuesIn(all_kinds()), name_of);

TEST_P(ProcessGroupMessages, GoRoundARingInBothWays) {
  run([&](Group group) {
    const int n = size(), rank = group->rank();
    if (n == 1) return;
    const int next = (rank + 1) % n, before = (rank + n - 1) % n;
    const at::Tensor got = at::zeros({3, 4});
    const auto sent = group->isend(values_of(rank, {3, 4}), next);
    EXPECT_EQ(group->recv(got, before), before);
    sent->wait();
    EXPECT_TRUE(at::equal(got, values_of(before, {3, 4})));

    const at::Tensor back = at::zeros({4, 3}, at::kShort).t();  // transposed, and of another type
    const auto other = group->isend(values_of(rank, {4, 3}, at::kShort).t(), before);
    group->recv(back, next);
    other->wait();
    EXPECT_TRUE(at::equal(back, values_of(next, {4, 3}, at::kShort).t()));
  });
}

TEST_P(ProcessGroupMessages, AreToldApartByTag) {
  run([&](Group group) {
    if (size() == 1) return;
    if (group->rank() == 0) {
      const auto one = group->isend(at::full({2}, 1.0), 1, 11);
      const auto two = group->isend(at::full({2}, 2.0), 1, 22);
      const auto three = group->isend(at::full({2}, 3.0), 1, 11);
      one->wait();
      two->wait();
      three->wait();
    }
    if (group->rank() == 1) {
      const at::Tensor two = at::zeros({2}), one = at::zeros({2}), three = at::zeros({2});
      group->recv(two, 0, 22);
      const auto first = group->irecv(one, 0, 11);
      const auto second = group->irecv(three, 0, 11);
      second->wait();
      first->wait();
      EXPECT_EQ(two[0].item<float>(), 2);
      EXPECT_EQ(one[1].item<float>(), 1);
      EXPECT_EQ(three[0].item<float>(), 3);
    }
  });
}

TEST_P(ProcessGroupMessages, ComeFromAnyoneAndSayFromWhom) {
  run([&](Group group) {
    const int rank = group->rank();
    if (rank != 0) return group->send(at::full({5}, static_cast<double>(rank)), 0, 3);
    std::set<int> senders;
    for (int i = 1; i < size(); ++i) {
      const at::Tensor got = at::zeros({5});
      const int from = group->recv(got, ProcessGroup::kAnyRank, 3);
      EXPECT_EQ(got[4].item<float>(), static_cast<float>(from));
      senders.insert(from);
    }
    EXPECT_EQ(senders.size(), static_cast<size_t>(size() - 1));
  });
}

TEST_P(ProcessGroupMessages, ABarrierLetsNobodyThroughBeforeAllHaveCome) {
  std::atomic<int> come{0};
  run([&](Group group) {
    for (int round = 1; round <= 20; ++round) {
      ++come;
      group->barrier();
      EXPECT_GE(come.load(), round * size());
      group->barrier();
    }
    group->monitored_barrier(std::chrono::seconds(20));
  });
}

TEST_P(ProcessGroupMessages, AMonitoredBarrierNamesWhoIsLate) {
  if (size() == 1) return;
  std::atomic<int> waiting{size() - 1};  // the late rank waits until the others have reported it
  run([&](Group group) {
    if (group->rank() == 1) {
      for (int left = waiting; left > 0; left = waiting) waiting.wait(left);
      return;
    }
    const std::string failure = failure_of([&] { group->monitored_barrier(milliseconds(300)); });
    EXPECT_NE(failure, "");
    if (group->rank() == 0) {
      EXPECT_THAT(failure, ::testing::ContainsRegex("[Rr]anks?:? .*1"));
    }
    --waiting;
    waiting.notify_all();
  });
}

TEST_P(ProcessGroupMessages, WorkCanBeWaitedForInAnyOrder) {
  run([&](Group group) {
    const int n = size(), rank = group->rank();
    std::vector<ProcessGroup::Work> works;
    Tensors sums, told;
    for (int i = 0; i < 6; ++i) {
      sums.push_back(at::full({1000 * i + 1}, static_cast<double>(rank + i)));
      told.push_back(at::full({i + 1}, static_cast<double>(rank)));
      works.push_back(group->all_reduce_async(sums.back()));
      works.push_back(group->broadcast_async(told.back(), i % n));
    }
    const at::Tensor between = at::full({2}, 1.0);
    group->all_reduce(between);
    EXPECT_EQ(between[0].item<float>(), static_cast<float>(n));
    for (auto work = works.rbegin(); work != works.rend(); ++work) {
      (*work)->wait();
      EXPECT_TRUE((*work)->isCompleted());
      EXPECT_TRUE((*work)->isSuccess());
    }
    for (int i = 0; i < 6; ++i) {
      const double wanted = n * (n - 1) / 2.0 + n * i;
      EXPECT_TRUE(at::equal(sums[i], at::full({1000 * i + 1}, wanted)));
      EXPECT_TRUE(at::equal(told[i], at::full({i + 1}, static_cast<double>(i % n))));
    }
  });
}

TEST_P(ProcessGroupMessages, AFutureHasTheResult) {
  run([&](Group group) {
    const at::Tensor tensor = at::full({4}, 1.0);
    const auto work = group->all_reduce_async(tensor);
    const auto future = work->getFuture();
    future->waitAndThrow();
    EXPECT_TRUE(
        at::equal(future->value().toTensorVector()[0], at::full({4}, static_cast<double>(size()))));
    work->wait();
  });
}

TEST_P(ProcessGroupMessages, ACallbackMayWaitForItsOwnWorkAndThrow) {
  if (GetParam().backend == "gloo") return;  // LibTorch's own behaviour
  run([&](Group group) {
    for (int round = 0; round < 20; ++round) {
      const auto work = group->all_reduce_async(at::full({4}, 1.0));
      std::promise<void> waited;
      try {
        work->getFuture()->addCallback([&](c10::ivalue::Future&) {
          work->wait();
          waited.set_value();
          throw std::runtime_error("a callback's own trouble");
        });
      } catch (const std::runtime_error&) {
        // The work was complete already, so the callback ran inside addCallback().
      }
      work->wait();
      waited.get_future().wait();
    }
    group->barrier();
  });
}

TEST_P(ProcessGroupMessages, AGroupMayEndInACallbackOfItsOwn) {
  if (GetParam().backend == "gloo") return;  // LibTorch's Gloo group would wait for its own thread
  run([&](Group group) {
    const auto future = group->all_reduce_async(at::full({4}, 1.0))->getFuture();
    const auto last = std::make_shared<Group>(std::move(group));
    const auto done = future->then(
        [last](c10::ivalue::Future&) {
          last->reset();
          return c10::IValue(true);
        },
        c10::BoolType::get());
    done->waitAndThrow();
  });
}

TEST_P(ProcessGroupMessages, SubgroupsHaveTheirOwnRanks) {
  run([&](Group group) {
    const int n = size(), rank = group->rank();
    std::vector<int> turned, even;  // the ranks in descending order; the even ranks
    for (int one = n - 1; one >= 0; --one) turned.push_back(one);
    for (int one = 0; one < n; one += 2) even.push_back(one);

    const Group back = group->new_group(turned);
    EXPECT_EQ(back->rank(), n - 1 - rank);
    EXPECT_EQ(back->global_ranks(), turned);
    const at::Tensor told = at::full({2}, static_cast<double>(rank));
    back->broadcast(told, 0);
    EXPECT_EQ(told[0].item<float>(), static_cast<float>(n - 1));

    const Group some = group->new_group(even);
    EXPECT_EQ(some != nullptr, rank % 2 == 0);
    if (some == nullptr) return;
    const at::Tensor sum = at::full({3}, 1.0);
    some->all_reduce(sum);
    EXPECT_EQ(sum[0].item<float>(), static_cast<float>(even.size()));

    // A subgroup of the last even rank alone. It is numbered within `some`, and remembered by its
    // rank in the first group.
    const int last = some->size() - 1;
    const Group alone = some->new_group({last});
    EXPECT_EQ(alone != nullptr, some->rank() == last);
    if (alone != nullptr) {
      EXPECT_EQ(alone->size(), 1);
      EXPECT_EQ(alone->global_ranks(), std::vector<int>{even.back()});
      alone->barrier();
    }
  });
}

TEST_P(ProcessGroupMessages, TwoGroupsOfTheSameRanksDoNotMixUp) {
  run([&](Group group) {
    const int n = size();
    std::vector<int> all;
    for (int one = 0; one < n; ++one) all.push_back(one);
    const Group first = group->new_group(all), second = group->new_group(all);
    EXPECT_NE(first->name(), second->name());
    // Each in its own order, at the same time.
    std::thread other([&] {
      for (int i = 0; i < 30; ++i) {
        const at::Tensor tensor = at::full({100}, 2.0);
        second->all_reduce(tensor);
        EXPECT_EQ(tensor[99].item<float>(), 2.0f * static_cast<float>(n));
      }
    });
    for (int i = 0; i < 30; ++i) {
      const at::Tensor tensor = at::full({17}, 1.0);
      first->broadcast(tensor, i % n);
      first->all_reduce(tensor);
      EXPECT_EQ(tensor[16].item<float>(), static_cast<float>(n));
    }
    other.join();
  });
}

}  // namespace
}  // namespace weft::testing
