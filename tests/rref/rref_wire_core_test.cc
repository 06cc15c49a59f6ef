#include "gtest/gtest.h"
#include "weft/base/status.h"
#include "weft/proto/rref.pb.h"
#include "weft/rref/internal/rref_wire.h"

namespace weft::rref_internal {
namespace {

constexpr WorkerId kUser{1, 2};
constexpr WorkerId kOwner{3, 4};
const RRefId kRRef{kUser, 5};
const ForkId kFork{kUser, 6};
const TypeTag kType{77, "at::Tensor"};

template <class M>
M round_trip(const M& message) {
  const auto decoded = decode_message(encode(Message(message)));
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(std::holds_alternative<M>(*decoded));
  return std::get<M>(*decoded);
}

TEST(RRefWire, EveryMessageKeepsEveryField) {
  const auto request = round_trip(ForkRequest{kRRef, kFork, 9, 1234});
  EXPECT_EQ(request.rref, kRRef);
  EXPECT_EQ(request.fork, kFork);
  EXPECT_EQ(request.settled_below, 9u);
  EXPECT_EQ(request.key, 1234u);
  EXPECT_EQ(round_trip(ForkAccept{kRRef, kFork}).fork, kFork);
  for (int reason = 1; reason <= 7; ++reason) {
    const auto value = static_cast<RejectReason>(reason);
    if (value == RejectReason::kNotCreated) continue;  // it has an error (below)
    EXPECT_EQ(round_trip(ForkReject{kRRef, kFork, value}).reason, value);
  }
  EXPECT_EQ(round_trip(ChildAccept{kRRef, kFork}).rref, kRRef);
  const auto end = round_trip(UserDelete{kRRef, kFork, true, 8});
  EXPECT_TRUE(end.ack_wanted);
  EXPECT_EQ(end.settled_below, 8u);
  EXPECT_EQ(round_trip(DeleteAck{kRRef, kFork}).fork, kFork);
  const auto cancel = round_trip(CancelFork{kOwner, kRRef, kFork, true, 7});
  EXPECT_EQ(cancel.owner, kOwner);
  EXPECT_TRUE(cancel.creation);
  EXPECT_EQ(cancel.settled_below, 7u);
  const auto ack = round_trip(CancelAck{kOwner, kRRef, kFork, true});
  EXPECT_EQ(ack.owner, kOwner);
  EXPECT_TRUE(ack.registered);
  EXPECT_EQ(round_trip(Settled{11}).settled_below, 11u);
}

TEST(RRefWire, ReferencesCreationsAndTargetsKeepEveryField) {
  const Reference from_user{kOwner, kRRef, ForkId{kUser, 8}, kFork, kType, 1234};
  const Reference from_owner{kOwner, kRRef, ForkId{kOwner, 8}, ForkId(), kType, 1235};
  EXPECT_EQ(decode_reference(encode(from_user)).value(), from_user);
  EXPECT_EQ(decode_reference(encode(from_owner)).value(), from_owner);
  const Creation creation{kRRef, kFork, kType, 1236};
  EXPECT_EQ(decode_creation(encode(creation)).value(), creation);
  const Target target{kRRef, kType, 1237};
  EXPECT_EQ(decode_target(encode(target)).value(), target);
}

void expect_bad(const absl::Status& status, const char* field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(field), absl::string_view::npos) << status;
}

TEST(RRefWire, WhyACreationFailedTravelsWhole) {
  const absl::Status error =
      raised_at(with_ran(absl::UnimplementedError("no function 'f'"), Ran::kNo), "w1");
  const auto cancel = round_trip(CancelFork{kOwner, kRRef, kFork, true, 7, error});
  const auto reject = round_trip(ForkReject{kRRef, kFork, RejectReason::kNotCreated, error});
  for (const absl::Status& read : {cancel.error, reject.error}) {
    EXPECT_EQ(read.code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(read.message(), "no function 'f'");
    EXPECT_EQ(ran_of(read), Ran::kNo);
    EXPECT_EQ(worker_of(read), "w1");
  }
  const absl::Status huge =
      add_hop(absl::UnknownError(std::string(100000, 'x')), std::string(100000, 'y'));
  const auto cut = round_trip(CancelFork{kOwner, kRRef, kFork, true, 7, huge});
  EXPECT_EQ(cut.error.message(), std::string(2048, 'x'));
  EXPECT_EQ(trail_of(cut.error), std::string(1024, 'y'));
}

TEST(RRefWire, AnErrorThatDoesNotBelongThereIsRefused) {
  const absl::Status error = absl::UnknownError("no");
  expect_bad(
      decode_message(encode(Message(CancelFork{kOwner, kRRef, kFork, false, 7, error}))).status(),
      "CancelFork.error");
  expect_bad(decode_message(encode(Message(ForkReject{kRRef, kFork, RejectReason::kFreed, error})))
                 .status(),
             "ForkReject.error");
  expect_bad(
      decode_message(encode(Message(ForkReject{kRRef, kFork, RejectReason::kNotCreated}))).status(),
      "ForkReject.error");
}

TEST(RRefWire, MissingIdsAreNamed) {
  expect_bad(decode_message(encode(Message(ForkAccept{RRefId{kUser, 0}, kFork}))).status(),
             "ForkAccept.rref");
  expect_bad(decode_message(encode(Message(UserDelete{kRRef, ForkId{{1, 0}, 6}}))).status(),
             "UserDelete.fork");
  expect_bad(decode_message(encode(Message(CancelAck{{}, kRRef, kFork}))).status(),
             "CancelAck.owner");
}

TEST(RRefWire, ReferencesThatContradictThemselvesAreRefused) {
  expect_bad(decode_reference(encode(Reference{kOwner, kRRef, kFork, ForkId(), kType})).status(),
             "RRefReference.parent");
  expect_bad(decode_reference(encode(Reference{kOwner, kRRef, {kOwner, 8}, kFork, kType})).status(),
             "RRefReference.parent");
  expect_bad(decode_reference(encode(Reference{{}, kRRef, kFork, kFork, kType})).status(),
             "RRefReference.owner");
  expect_bad(decode_reference(encode(Reference{kOwner, kRRef, kFork, kFork, {1, ""}})).status(),
             "RRefReference.type");
  const TypeTag huge{1, std::string(1025, 'x')};
  expect_bad(decode_target(encode(Target{kRRef, huge})).status(), "RRefTarget.type");
  expect_bad(decode_creation(encode(Creation{kRRef, {kOwner, 6}, kType})).status(),
             "RRefCreation.fork");
  expect_bad(decode_message(encode(Message(CancelFork{kOwner, {kOwner, 1}, kFork, true}))).status(),
             "CancelFork.fork");
}

TEST(RRefWire, UnknownMessagesReasonsAndGarbageAreRefused) {
  expect_bad(decode_message("").status(), "RRefMessage.message");
  expect_bad(decode_message("\xff\xff").status(), "RRefMessage");
  wire::RRefMessage message;
  EXPECT_TRUE(message.ParseFromString(encode(Message(ForkReject{kRRef, kFork}))));
  message.mutable_fork_reject()->set_reason(static_cast<wire::RRefMessage::ForkReject::Reason>(99));
  expect_bad(decode_message(message.SerializeAsString()).status(), "ForkReject.reason");
}

// If a message is cut anywhere or any bit is flipped, it is refused or is some well-formed message.
TEST(RRefWire, MutatedBytesNeverMakeMalformedMessages) {
  const std::string good = encode(Message(CancelFork{kOwner, kRRef, kFork, true, 7}));
  for (size_t i = 0; i < good.size(); ++i) {
    (void)decode_message(good.substr(0, i));
    for (int bit = 0; bit < 8; ++bit) {
      std::string mutated = good;
      mutated[i] = static_cast<char>(mutated[i] ^ (1 << bit));
      const auto decoded = decode_message(mutated);
      if (decoded.ok()) {
        EXPECT_TRUE(decode_message(encode(*decoded)).ok());
      } else {
        EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
      }
    }
  }
}

}  // namespace
}  // namespace weft::rref_internal
