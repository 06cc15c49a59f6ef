// A program is told of the members of its group by streams of events, and by waits until a worker
// is gone.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The next event as a text: "b joined".
std::string next(const MemberEvents& events) {
  const std::optional<MemberEvent> event = events.next(seconds(20));
  if (!event) return events.closed() ? "closed" : "none";
  const auto with = [&](const char* what) { return absl::StrCat(event->worker.name, " ", what); };
  switch (event->change) {
    case MemberChange::kJoined:
      return with("joined");
    case MemberChange::kLeft:
      return with("left");
    case MemberChange::kDied:
      EXPECT_EQ(event->reason.code(), absl::StatusCode::kUnavailable) << event->reason;
      return with("died");
  }
  return "no event";
}

class MemberEventsTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  WorkerWorld world_{GetParam()};
  std::vector<std::unique_ptr<Worker>> keep_;  // joiners that stay
};

TEST_P(MemberEventsTest, BeginWithThePresentMembersAndGoOnWithTheirChanges) {
  Worker& a = world_.join("a");
  Worker& b = world_.join("b");
  const MemberEvents events = a.member_events();
  world_.join("c");
  EXPECT_EQ(next(events), "b joined");
  EXPECT_EQ(next(events), "c joined");
  b.shutdown();
  EXPECT_EQ(next(events), "b left");
  EXPECT_FALSE(events.next(milliseconds(20)));
  EXPECT_FALSE(events.closed());
}

TEST_P(MemberEventsTest, AJoinerBeginsWithTheMembersThatWereThere) {
  world_.join("a");
  world_.join("b").shutdown();
  const MemberEvents events = world_.join("c").member_events();
  EXPECT_EQ(next(events), "a joined");
  EXPECT_FALSE(events.next(milliseconds(20)));
}

// Whether a worker joins before, during or after the creation of a stream: it is told of it once.
TEST_P(MemberEventsTest, AStreamThatIsMadeDuringAJoinMissesNothing) {
  Worker& a = world_.join("a");
  std::set<WorkerId> present;
  for (int i = 0; i < 10; ++i) {
    std::unique_ptr<Worker> joiner;
    std::thread joining([&] {
      joiner = std::make_unique<Worker>(Worker::join(world_.options_of(absl::StrCat("w", i))));
    });
    const MemberEvents events = a.member_events();
    std::set<WorkerId> joined;
    while (joined.size() < present.size() + 1) {
      const std::optional<MemberEvent> event = events.next(seconds(20));
      ASSERT_TRUE(event);
      EXPECT_EQ(event->change, MemberChange::kJoined);
      EXPECT_TRUE(joined.insert(event->worker.id).second) << event->worker.name << " joined twice";
    }
    joining.join();
    EXPECT_TRUE(joined.contains(joiner->id()));
    if (i % 2 == 0) {
      joiner->shutdown();
      EXPECT_EQ(next(events), absl::StrCat("w", i, " left"));
    } else {
      present.insert(joiner->id());
      keep_.push_back(std::move(joiner));
    }
  }
}

TEST_P(MemberEventsTest, ShutdownClosesTheStreamOfAReaderThatWaits) {
  auto a = std::make_unique<Worker>(Worker::join(world_.options_of("a")));
  const MemberEvents events = a->member_events();
  std::optional<MemberEvent> last;
  std::thread reader([&] { last = events.next(absl::InfiniteDuration()); });
  a->shutdown();
  reader.join();
  EXPECT_FALSE(last);
  EXPECT_TRUE(events.closed());
  EXPECT_EQ(error_of([&] { return a->member_events(); }).code(),
            absl::StatusCode::kFailedPrecondition);
  a = nullptr;
  EXPECT_EQ(next(events), "closed");
}

TEST_P(MemberEventsTest, EventsCanStillBeReadWhenTheWorkerIsDestroyed) {
  world_.join("a");
  auto b = std::make_unique<Worker>(Worker::join(world_.options_of("b")));
  const MemberEvents events = b->member_events();
  b = nullptr;
  EXPECT_FALSE(events.closed());
  EXPECT_EQ(next(events), "a joined");
  EXPECT_EQ(next(events), "closed");
}

INSTANTIATE_TEST_SUITE_P(Transports, MemberEventsTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kSameHost),
                         [](const auto& info) { return to_string(info.param); });

class MemberDeaths : public ::testing::Test {
 protected:
  WorkerWorld world_{TransportKind::kInproc};
};

TEST_F(MemberDeaths, EachStreamGetsAllEvents) {
  Worker& a = world_.join("a");
  const MemberEvents early = a.member_events();
  Worker& b = world_.join("b");
  const MemberEvents late = a.member_events();
  EXPECT_EQ(next(early), "b joined");
  EXPECT_EQ(next(late), "b joined");
  world_.kill(b);
  EXPECT_EQ(next(early), "b died");
  EXPECT_EQ(next(late), "b died");
}

TEST_F(MemberDeaths, ARestartedWorkerIsAnotherMember) {
  Worker& a = world_.join("a");
  const MemberEvents events = a.member_events();
  Worker& first = world_.join("b");
  EXPECT_EQ(next(events), "b joined");
  world_.kill(first);
  EXPECT_EQ(next(events), "b died");
  Worker& second = world_.join("b");
  const std::optional<MemberEvent> joined = events.next(seconds(20));
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->worker.id, second.id());
  EXPECT_EQ(joined->worker.name, "b");
}

TEST_F(MemberDeaths, AWakeEndsOneWait) {
  Worker& a = world_.join("a");
  const MemberEvents events = a.member_events();
  events.wake();
  EXPECT_FALSE(events.next(absl::InfiniteDuration()));
  std::thread other([copy = events] { copy.wake(); });
  EXPECT_FALSE(events.next(absl::InfiniteDuration()));
  other.join();
  EXPECT_FALSE(events.closed());
  world_.join("b");
  EXPECT_EQ(next(events), "b joined");
}

TEST_F(MemberDeaths, WaitingForAWorkerThatLeavesSucceeds) {
  Worker& a = world_.join("a");
  Worker& b = world_.join("b");
  const Future<void> gone = a.wait_until_gone_async("b", seconds(20));
  EXPECT_FALSE(gone.done());
  b.shutdown();
  gone.wait();
  a.wait_until_gone("b", milliseconds(1));  // it is known to have left
}

TEST_F(MemberDeaths, WaitingForAWorkerThatDiesGivesTheReasonAndItsName) {
  Worker& a = world_.join("a");
  Worker& b = world_.join("b");
  const Future<void> gone = a.wait_until_gone_async("b", seconds(20));
  world_.kill(b);
  for (const absl::Status& status :
       {gone.result().status(), error_of([&] { a.wait_until_gone("b", seconds(20)); })}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker 'b'"));
  }
}

TEST_F(MemberDeaths, AWaitConcernsTheIncarnationThatIsThere) {
  Worker& a = world_.join("a");
  Worker& first = world_.join("b");
  world_.kill(first);
  EXPECT_FALSE(a.wait_until_gone_async("b", seconds(20)).result().ok());
  Worker& second = world_.join("b");
  a.wait_for("b", seconds(20));
  const Future<void> gone = a.wait_until_gone_async("b", seconds(20));
  EXPECT_FALSE(gone.done());
  second.shutdown();
  gone.wait();
}

TEST_F(MemberDeaths, AWaitHasALimitAndNamesTheWorker) {
  Worker& a = world_.join("a");
  world_.join("b");
  const auto wait = [&](const char* worker) {
    return error_of([&] { a.wait_until_gone(worker, milliseconds(20)); });
  };
  const absl::Status late = wait("b");
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), AllOf(HasSubstr("'b'"), HasSubstr("20ms")));
  const absl::Status unknown = wait("nobody");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("'nobody'"));
  EXPECT_EQ(wait("a").code(), absl::StatusCode::kInvalidArgument);
}

// `wait_for` gives the name, so the wait must find it, even while the joiner is being announced.
TEST_F(MemberDeaths, AWorkerThatIsFoundCanBeWaitedFor) {
  Worker& a = world_.join("a");
  for (int i = 0; i < 10; ++i) {
    const std::string name = absl::StrCat("w", i);
    Promise<void> found(nullptr);
    std::thread joining([&] {
      Worker joiner = Worker::join(world_.options_of(name));
      found.future().wait();
      joiner.shutdown();
    });
    a.wait_for(name, seconds(20));
    const Future<void> gone = a.wait_until_gone_async(name, seconds(20));
    found.set_value();
    gone.wait();
    joining.join();
  }
}

TEST_F(MemberDeaths, ShutdownEndsTheWaits) {
  Worker& a = world_.join("a");
  world_.join("b");
  const Future<void> gone = a.wait_until_gone_async("b", absl::InfiniteDuration());
  a.shutdown();
  EXPECT_EQ(gone.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(error_of([&] { return a.wait_until_gone_async("b", seconds(1)); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(StaticGroupEvents, BeginWithTheOtherRanks) {
  WorkerWorld world(3);
  const MemberEvents events = world[1].member_events();
  EXPECT_EQ(next(events), "worker0 joined");
  EXPECT_EQ(next(events), "worker2 joined");
  world.kill(2);
  EXPECT_EQ(next(events), "worker2 died");
}

}  // namespace
}  // namespace weft::testing
