// Checks what the ranks of a host do when their host leader comes late or fails, in groups of
// several hosts.
#include <array>
#include <barrier>
#include <functional>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/comm/group_kinds.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// `hosts` has one letter for each rank: ranks with the same letter share a host.
void run_hosts(const std::string& hosts, const std::function<void(Group)>& program) {
  run_ranks(static_cast<int>(hosts.size()), program, [&](ProcessGroupOptions& options) {
    options.host = hosts.substr(static_cast<size_t>(options.rank), 1);
  });
}

// ---- a host leader that comes late

struct Call {
  const char* name;
  std::function<std::vector<ProcessGroup::Work>(ProcessGroup&)> start;
};

std::vector<Call> calls() {
  return {
      {"all_reduce",
       [](ProcessGroup& group) { return std::vector{group.all_reduce_async(at::ones({4}))}; }},
      {"two all_reduces, one behind the other",
       [](ProcessGroup& group) {
         return std::vector{group.all_reduce_async(at::ones({4})),
                            group.all_reduce_async(at::ones({4}))};
       }},
      {"all_reduce_coalesced",
       [](ProcessGroup& group) {
         Tensors tensors = {at::ones({4}), at::ones({5})};
         return std::vector{group.backend()->allreduce_coalesced(tensors)};
       }},
      {"broadcast from the other host",
       [](ProcessGroup& group) { return std::vector{group.broadcast_async(at::ones({4}), 2)}; }},
      {"barrier", [](ProcessGroup& group) { return std::vector{group.backend()->barrier()}; }},
  };
}

// Rank 1 begins. Its host leader comes after 2.4 s, when more than half of rank 1's timeout is
// over. The rank of the other host comes after 4.75 s. By then rank 1's timeout and its grace (4.5
// s) are over, but the leader's timeout, which lasts until 6.4 s, is not. The margins of 1.6 s are
// for a busy machine.
void expect_all_to_succeed(const Call& call) {
  constexpr milliseconds kTimeout{4000}, kLeaderComes{2400}, kOtherHostComes{4750};
  std::promise<Clock::time_point> begins;
  const std::shared_future<Clock::time_point> begun = begins.get_future().share();
  std::promise<void> ends;
  const std::shared_future<void> ended = ends.get_future().share();
  run_hosts("aab", [&](Group group) {
    group->backend()->setTimeout(kTimeout);
    const int rank = group->rank();
    if (rank == 1) {
      begins.set_value(Clock::now());
    } else {
      // Checks that rank 1 has not given up before.
      EXPECT_EQ(ended.wait_until(begun.get() + (rank == 0 ? kLeaderComes : kOtherHostComes)),
                std::future_status::timeout)
          << call.name;
    }
    const std::string failure = failure_of([&] {
      for (const ProcessGroup::Work& work : call.start(*group)) work->wait();
    });
    EXPECT_EQ(failure, "") << call.name << " on rank " << rank;
    if (rank == 1) ends.set_value();
  });
}

TEST(HierarchicalGroup, RanksWaitForTheirLeaderAsLongAsItWaitsForOtherHosts) {
  const std::vector<Call> all = calls();
  std::vector<std::thread> groups;  // at the same time, since each takes as long as its timeout
  for (const Call& call : all) groups.emplace_back([&call] { expect_all_to_succeed(call); });
  for (std::thread& group : groups) group.join();
}

// ---- a host leader that fails

// The part of a rank's failure that follows the name of the operation, at most 200 characters. The
// other ranks are told only a part of a longer text.
std::string cause_of(const std::string& failure) {
  const std::string mark = "all_reduce(sum, Float) among hosts: ";
  const size_t at = failure.find(mark);
  if (at == std::string::npos) return "";
  const std::string cause = failure.substr(at + mark.size(), 200);
  return cause.substr(0, cause.find('\n'));
}

void expect_cause_of_leader(const std::array<std::string, 3>& failures) {
  const std::string cause = cause_of(failures[0]);
  EXPECT_NE(cause, "") << failures[0];
  for (size_t rank : {1, 2}) {
    EXPECT_THAT(failures[rank], AllOf(HasSubstr("rank 0 has given up: "), HasSubstr(cause)))
        << "rank " << rank;
  }
}

TEST(HierarchicalGroup, AHostsRanksHearThatTheirLeaderWaitedForAnotherHostInVain) {
  std::array<std::string, 3> failures;
  std::latch others_have_begun(2), all_have_failed(3);
  run_hosts("aaab", [&](Group group) {
    const auto rank = static_cast<size_t>(group->rank());
    if (rank == 3) return all_have_failed.wait();
    if (rank == 0) {
      others_have_begun.wait();
      group->backend()->setTimeout(milliseconds(500));  // its own only
    }
    const ProcessGroup::Work work = group->all_reduce_async(at::ones({4}));
    if (rank > 0) others_have_begun.count_down();
    failures[rank] = failure_of([&] { work->wait(); });
    all_have_failed.count_down();
  });
  expect_cause_of_leader(failures);
}

TEST(HierarchicalGroup, AHostsRanksHearThatTheirLeaderLostAnotherHost) {
  std::array<std::string, 3> failures;
  std::barrier all_have_joined(4);
  run_hosts("aaab", [&](Group group) {
    all_have_joined.arrive_and_wait();
    const auto rank = static_cast<size_t>(group->rank());
    if (rank == 3) return;
    failures[rank] = failure_of([&] { group->all_reduce(at::ones({4})); });
  });
  expect_cause_of_leader(failures);
}

TEST(HierarchicalGroup, AllRanksHearWhatTheHostsCalled) {
  run_hosts("aabb", [&](Group group) {
    const bool first_host = group->rank() < 2;
    const std::string call = "calls all_reduce(sum, Float) of shape ";
    const auto expected = AllOf(HasSubstr(absl::StrCat("rank 0 ", call, "[3]")),
                                HasSubstr(absl::StrCat("rank 2 ", call, "[7]")));
    EXPECT_THAT(failure_of([&] { group->all_reduce(at::ones({first_host ? 3 : 7})); }), expected)
        << "rank " << group->rank();
    // A group that has failed stays failed and keeps its reason.
    EXPECT_THAT(failure_of([&] { group->barrier(); }), expected) << "rank " << group->rank();
  });
}

// ---- abort

TEST(HierarchicalGroup, AfterAnAbortNoOperationBegins) {
  std::barrier all_have_joined(3), all_have_failed(3);
  run_hosts("aab", [&](Group group) {
    all_have_joined.arrive_and_wait();
    group->backend()->abort();
    const at::Tensor ones = at::ones({4});
    const std::vector<std::function<void()>> calls = {
        [&] { group->all_reduce(ones); }, [&] { group->broadcast(ones, 0); },
        [&] { group->barrier(); },        [&] { group->all_gather(ones); },
        [&] { group->reduce(ones, 0); },
    };
    for (size_t call = 0; call < calls.size(); ++call) {
      EXPECT_THAT(failure_of(calls[call]), HasSubstr("the backend was aborted"))
          << "call " << call << " on rank " << group->rank();
    }
    all_have_failed.arrive_and_wait();
  });
}

}  // namespace
}  // namespace weft::testing
