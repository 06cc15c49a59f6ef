#include "weft/rpc/membership/processor_waits.h"

#include <unistd.h>

#include <gtest/gtest.h>

#include "weft/tests/support/fake_proc.h"

namespace weft::rpc_internal {
namespace {

using std::chrono::milliseconds;

class ProcessorWaitsTest : public ::testing::Test {
 protected:
  // Looks 200 ms after the last look.
  Nanoseconds look() { return look(proc_.peer()); }
  Nanoseconds look(const HostProcess& process) {
    waits_.begin(now_ += milliseconds(200));
    return waits_.of(process);
  }
  void serving(char state, Nanoseconds waited) { proc_.thread(81, "weft serving", state, waited); }

  testing::FakeProc proc_;
  ProcessorWaits waits_{proc_.root()};
  TimePoint now_ = TimePoint() + std::chrono::seconds(100);
};

TEST_F(ProcessorWaitsTest, SaysWhichProcessThisIs) {
  EXPECT_EQ(waits_.self().host, "boot pid:[1]");
  EXPECT_EQ(waits_.self().pid, 7u);
  EXPECT_EQ(waits_.self().started, 70u);
}

TEST_F(ProcessorWaitsTest, TellsHowMuchAThreadHasWaitedSinceTheLastLook) {
  EXPECT_EQ(look(), milliseconds(0));
  serving('S', milliseconds(151));
  EXPECT_EQ(look(), milliseconds(150));
  EXPECT_EQ(look(), milliseconds(0));
}

TEST_F(ProcessorWaitsTest, ThreadsThatComputeDoNotCount) {
  proc_.thread(82, "trainer1", 'R', milliseconds(1));
  look();
  proc_.thread(82, "trainer1", 'R', milliseconds(151));
  EXPECT_EQ(look(), milliseconds(0));
}

TEST_F(ProcessorWaitsTest, OneThatServesCountsAtEachLookBesideHundredsThatDoNot) {
  for (int id = 100; id < 355; ++id) proc_.thread(id, "trainer1", 'S', milliseconds(1));
  EXPECT_EQ(look(), milliseconds(0));
  for (int i = 1; i <= 3; ++i) {
    serving('S', milliseconds(1 + 150 * i));
    EXPECT_EQ(look(), milliseconds(150)) << "look " << i;
  }
}

// The kernel counts a wait when it is over. The part that was reported before is not reported
// again.
TEST_F(ProcessorWaitsTest, AThreadThatCanRunAndGetsNoTurnWaits) {
  look();
  serving('R', milliseconds(1));
  EXPECT_EQ(look(), milliseconds(200));
  EXPECT_EQ(look(), milliseconds(200));
  serving('S', milliseconds(1 + 450));
  EXPECT_EQ(look(), milliseconds(50));
}

TEST_F(ProcessorWaitsTest, AStoppedProcessDoesNotWait) {
  look();
  for (const char state : {'T', 't', 'Z'}) {
    serving(state, milliseconds(1));
    EXPECT_EQ(look(), milliseconds(0)) << state;
  }
}

TEST_F(ProcessorWaitsTest, AClaimThatTheKernelDoesNotConfirmSaysNothing) {
  HostProcess elsewhere = proc_.peer(), later = elsewhere, none = elsewhere;
  elsewhere.host = "boot pid:[2]";
  later.started = 81;
  none.pid = 9;
  for (const HostProcess& wrong : {elsewhere, later, none, HostProcess{}}) {
    look(wrong);
    serving('R', milliseconds(1));
    EXPECT_EQ(look(wrong), milliseconds(0)) << wrong.pid;
  }
}

TEST_F(ProcessorWaitsTest, WhatWasNotAskedForAtTheLastLookIsNotToldLater) {
  look();
  waits_.begin(now_ += milliseconds(200));
  serving('S', milliseconds(151));
  EXPECT_EQ(look(), milliseconds(0));
}

TEST_F(ProcessorWaitsTest, TwoWorkersOfOneProcessAreToldTheSame) {
  look();
  serving('S', milliseconds(151));
  EXPECT_EQ(look(), milliseconds(150));
  EXPECT_EQ(waits_.of(proc_.peer()), milliseconds(150));
}

TEST_F(ProcessorWaitsTest, WithoutAKernelThatTellsNothingIsKnown) {
  proc_.remove();
  ProcessorWaits none(proc_.root());
  EXPECT_EQ(none.self().host, "");
  none.begin(now_);
  EXPECT_EQ(none.of(none.self()), milliseconds(0));
}

// The kernel that runs this test has the same files.
TEST(ProcessorWaits, FindsThisProcess) {
  const ProcessorWaits real;
  EXPECT_NE(real.self().host, "");
  EXPECT_EQ(real.self().pid, static_cast<uint64_t>(getpid()));
  EXPECT_GT(real.self().started, 0u);
}

}  // namespace
}  // namespace weft::rpc_internal
