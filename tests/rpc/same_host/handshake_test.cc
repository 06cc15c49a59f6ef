// The messages that open a connection of shared memory: what they carry, and what is refused.
#include "weft/rpc/same_host/handshake.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/transport/hello.h"
#include "weft/shm/wake_bits.h"

namespace weft::rpc_internal {
namespace {

using ::testing::HasSubstr;

Introduction introduction() {
  Introduction introduction;
  introduction.slot = 1023;
  introduction.ring_bytes = 4096;
  introduction.nonce = 0x1234'5678'9abc'def0;
  introduction.hello = hello_of({"group", "w1", {1, 2}, "host:1;there"});
  introduction.hello.set_expected(WorkerId{5, 6}.bits());
  return introduction;
}

template <class T>
std::string with(size_t offset, T value) {
  std::string message = encode_introduction(introduction());
  std::memcpy(message.data() + offset, &value, sizeof(value));
  return message;
}

void expect_introduction_refused(const std::string& message, absl::StatusCode code,
                                 const std::string& text) {
  const absl::Status status = decode_introduction(message).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(HandshakeTest, AnIntroductionArrivesAsItWasSent) {
  const auto decoded = decode_introduction(encode_introduction(introduction()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->slot, 1023u);
  EXPECT_EQ(decoded->ring_bytes, 4096u);
  EXPECT_EQ(decoded->nonce, introduction().nonce);
  EXPECT_EQ(decoded->hello.SerializeAsString(), introduction().hello.SerializeAsString());
}

TEST(HandshakeTest, AnotherLayoutIsNotThePeersFault) {
  expect_introduction_refused(with(0, uint64_t{7}), absl::StatusCode::kFailedPrecondition,
                              "shares memory with layout 7");
}

TEST(HandshakeTest, EachFieldIsChecked) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::string message = encode_introduction(introduction());
  expect_introduction_refused("", kInvalid, "0 bytes is shorter than its header");
  expect_introduction_refused(message.substr(0, 23), kInvalid, "23 bytes is shorter");
  expect_introduction_refused(message.substr(0, 24), kInvalid, "without a hello");
  expect_introduction_refused(with(8, uint32_t{WakeBits::kSlots}), kInvalid, "slot 1024");
  for (const uint32_t ring : {1u, 128u, 4097u, uint32_t{2 * kMostFrameRing}, 1u << 30}) {
    expect_introduction_refused(with(12, ring), kInvalid, absl::StrCat("a ring of ", ring));
  }
  EXPECT_TRUE(decode_introduction(with(12, uint32_t{kMostFrameRing})).ok());
  EXPECT_TRUE(decode_introduction(with(12, uint32_t{0})).ok());  // a WELCOME
  expect_introduction_refused(message.substr(0, 24) + "\xff\xff", kInvalid, "cannot be parsed");
  Introduction other = introduction();
  other.hello.set_protocol(kProtocols.newest + 1);
  expect_introduction_refused(encode_introduction(other), absl::StatusCode::kPermissionDenied,
                              "speaks version");
}

TEST(HandshakeTest, NoPrefixOfAMessageIsAccepted) {
  const std::string message = encode_introduction(introduction());
  for (size_t size = 0; size < 30; ++size) {
    EXPECT_FALSE(decode_introduction(message.substr(0, size)).ok()) << size;
  }
}

TEST(HandshakeTest, AnAddressIsOfThisHostOrOfNone) {
  const std::string address = local_address("weft-1a2b");
  EXPECT_EQ(listener_at(address).value(), "weft-1a2b");
  EXPECT_THAT(address, ::testing::Not(::testing::ContainsRegex("[ ;]")));
  for (const std::string& other :
       {std::string(), std::string("weft-1a2b"), std::string("elsewhere,weft-1a2b"),
        local_address(""), address + ",more", std::string("\n\x01,x")}) {
    const absl::Status status = listener_at(other).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not on this host"));
    EXPECT_EQ(status.message().find('\n'), std::string_view::npos);
  }
}

}  // namespace
}  // namespace weft::rpc_internal
