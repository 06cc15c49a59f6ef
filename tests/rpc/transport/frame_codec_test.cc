#include "weft/rpc/transport/frame_codec.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::rpc_internal {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMetaSize = 88;  // offsets in the fixed header
constexpr size_t kBodySize = 92;
constexpr size_t kPayloadCount = 96;
constexpr size_t kValueBytes = 100;

Frame sample() {
  Frame frame;
  FrameHeader& h = frame.header;
  h.kind = FrameKind::kReply;
  h.flags = kFlagError | kFlagObject;
  h.source = {3, 4};
  h.destination = {0xffffffff, 0xfffffffe};
  h.sequence = 5;
  h.acknowledged = 6;
  h.call = 7;
  h.function = ~uint64_t{0};
  h.fingerprint = 9;
  h.budget_us = 10;
  h.credit_calls = 11;
  h.credit_bytes = 12;
  h.value_bytes = 3;
  frame.meta = std::string("me\0ta", 5);
  frame.body = "body text";
  for (size_t size : {size_t{10}, size_t{0}, size_t{1} << 20}) {
    Payload payload;
    payload.size = size;
    frame.payloads.push_back(payload);
  }
  return frame;
}

template <class T>
std::string with(std::string head, size_t offset, T value) {
  std::memcpy(head.data() + offset, &value, sizeof(value));
  return head;
}

void expect_refused(const std::string& head, std::string_view what,
                    const TransportLimits& limits = {}) {
  const auto frame = decode_head(head, limits);
  ASSERT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_THAT(std::string(frame.status().message()), HasSubstr(std::string(what)));
}

TEST(FrameCodecTest, EveryFieldSurvivesTheRoundTrip) {
  const Frame sent = sample();
  const std::string head = encode_head(sent);
  EXPECT_EQ(*head_size(std::string_view(head).substr(0, kFixedHeaderBytes), {}), head.size());
  const auto got = decode_head(head, {});
  ASSERT_TRUE(got.ok()) << got.status();
  const FrameHeader &a = sent.header, &b = got->header;
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.flags, b.flags);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.destination, b.destination);
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.acknowledged, b.acknowledged);
  EXPECT_EQ(a.call, b.call);
  EXPECT_EQ(a.function, b.function);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.budget_us, b.budget_us);
  EXPECT_EQ(a.credit_calls, b.credit_calls);
  EXPECT_EQ(a.credit_bytes, b.credit_bytes);
  EXPECT_EQ(a.value_bytes, b.value_bytes);
  EXPECT_EQ(sent.meta, got->meta);
  EXPECT_EQ(sent.body, got->body);
  ASSERT_EQ(got->payloads.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got->payloads[i].size, sent.payloads[i].size);
    EXPECT_EQ(got->payloads[i].data, nullptr);  // sizes alone allocate nothing
  }
  EXPECT_EQ(encode_head(*got), head);
}

TEST(FrameCodecTest, EveryKindSurvivesAndNoOtherDoes) {
  for (int kind = 0; kind < 256; ++kind) {
    const std::string head = with(encode_head(sample()), 4, static_cast<uint8_t>(kind));
    if (kind >= kFirstFrameKind && kind <= kLastFrameKind) {
      ASSERT_TRUE(decode_head(head, {}).ok()) << kind;
      EXPECT_EQ(static_cast<int>(decode_head(head, {})->header.kind), kind);
    } else {
      expect_refused(head, "kind");
    }
  }
}

// The layout that proto/weft.proto states. Other programs read it too.
TEST(FrameCodecTest, TheLayoutIsTheOneWrittenDown) {
  const std::string head = encode_head(sample());
  EXPECT_EQ(head.substr(0, 4), "WFT1");
  EXPECT_EQ(head[4], 3);
  uint64_t source = 0;
  std::memcpy(&source, head.data() + 8, 8);
  EXPECT_EQ(source, (uint64_t{3} << 32) | 4);
  EXPECT_EQ(head.substr(kFixedHeaderBytes + 3 * 8), std::string("me\0ta", 5) + "body text");
}

TEST(FrameCodecTest, EveryTruncationIsRefused) {
  const std::string head = encode_head(sample());
  for (size_t size = 0; size < head.size(); ++size) {
    const std::string cut = head.substr(0, size);
    EXPECT_EQ(decode_head(cut, {}).status().code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_EQ(head_size(cut, {}).ok(), size >= kFixedHeaderBytes) << size;
  }
  expect_refused(head + 'x', "says it has");
}

TEST(FrameCodecTest, BadMagicAndPaddingAreRefused) {
  const std::string head = encode_head(sample());
  for (size_t i = 0; i < 4; ++i) expect_refused(with(head, i, 'x'), "magic");
  for (size_t i = 6; i < 8; ++i) expect_refused(with(head, i, 'x'), "padding");
}

TEST(FrameCodecTest, SizesThatLieAreRefused) {
  const std::string head = encode_head(sample());
  for (size_t field : {kMetaSize, kBodySize, kPayloadCount}) {
    for (uint32_t lie : {0u, 1u, 4u, 100u, 65535u, 65536u, 65537u, 0x7fffffffu, 0xffffffffu}) {
      EXPECT_EQ(decode_head(with(head, field, lie), {}).status().code(),
                absl::StatusCode::kInvalidArgument)
          << field << " " << lie;
    }
  }
  for (uint32_t lie : {10u, 0x7fffffffu, 0xffffffffu}) {
    expect_refused(with(head, kValueBytes, lie), "values of");
  }
}

TEST(FrameCodecTest, LimitsHoldBeforeAnythingIsAllocated) {
  TransportLimits limits;
  limits.max_payloads = 2;
  expect_refused(encode_head(sample()), "payloads", limits);
  limits = {};
  limits.max_frame_bytes = 100;
  expect_refused(encode_head(sample()), "exceeds", limits);
  const std::string head = encode_head(sample());
  for (size_t payload = 0; payload < 3; ++payload) {
    for (uint64_t lie : {(uint64_t{4} << 30) + 1, uint64_t{1} << 63, ~uint64_t{0}}) {
      expect_refused(with(head, kFixedHeaderBytes + 8 * payload, lie), "payload of");
    }
  }
  // Two sizes that fit alone, but not together, nor by wrapping around.
  limits = {};
  limits.max_frame_bytes = size_t{1} << 20;
  expect_refused(encode_head(sample()), "payload of", limits);
}

TEST(FrameCodecTest, WhatReceiversWouldRefuseIsRefusedBeforeItIsSent) {
  TransportLimits limits;
  limits.max_frame_bytes = 1000;
  limits.max_payloads = 2;
  const auto message = [](size_t meta, size_t body, std::vector<size_t> payloads) {
    Frame frame;
    frame.meta.assign(meta, 'm');
    frame.body.assign(body, 'b');
    for (const size_t size : payloads) frame.payloads.push_back({nullptr, size, nullptr});
    return frame;
  };
  const auto refusal = [&](const Frame& frame) {
    const absl::Status status = check_frame(frame, limits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_TRUE(check_frame(message(100, 796, {}), limits).ok());
  EXPECT_THAT(refusal(message(100, 797, {})), HasSubstr("1001 bytes"));
  EXPECT_TRUE(check_frame(message(0, 0, {440, 440}), limits).ok());
  EXPECT_THAT(refusal(message(0, 0, {440, 441})), HasSubstr("a tensor of 441 bytes"));
  EXPECT_THAT(refusal(message(0, 0, {1, ~size_t{0}})), HasSubstr("exceeds 1000 bytes"));
  EXPECT_THAT(refusal(message(0, 0, {1, 1, 1})), HasSubstr("3 tensors exceeds 2"));
  // If the check lets a frame through, the receiver takes it, also with the default limits.
  const Frame largest = message(100, 796, {});
  EXPECT_TRUE(decode_head(encode_head(largest), limits).ok());
  EXPECT_THAT(check_frame(message(0, 0, {(size_t{4} << 30) + 1}), {}).message(),
              HasSubstr("4294967297 bytes"));
}

TEST(FrameCodecTest, AppendsBehindWhatIsThere) {
  std::string text = "before";
  append_head(sample(), text);
  EXPECT_EQ(text, "before" + encode_head(sample()));
}

}  // namespace
}  // namespace weft::rpc_internal
