#include "weft/rpc/transport/internal/stream_codec.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc/transport/frame_codec.h"
#include "weft/tests/rpc/support/records.h"

namespace weft::rpc_internal {
namespace {

constexpr auto kHelloFirst = FrameReader::Begins::kWithHello;
constexpr auto kFramesFirst = FrameReader::Begins::kWithFrames;

// Bytes that depend on their position, with an owner that is counted.
Payload payload_of(size_t size, uint64_t salt) {
  auto block = std::make_shared<std::vector<std::byte>>(size);
  for (size_t i = 0; i < size; ++i) {
    (*block)[i] = static_cast<std::byte>((i * 131 + salt) ^ (i >> 8));
  }
  return {block->data(), size, block};
}

FramePtr frame_of(uint64_t number, size_t body, const std::vector<size_t>& payloads) {
  auto frame = std::make_shared<Frame>();
  frame->header.kind = FrameKind::kCall;
  frame->header.sequence = number;
  frame->meta = std::string(number % 3, 'm');
  frame->body.assign(body, static_cast<char>('a' + number % 26));
  for (size_t size : payloads) frame->payloads.push_back(payload_of(size, number));
  return frame;
}

void expect_same(const Frame& sent, const Frame& got) {
  ASSERT_EQ(encode_head(sent), encode_head(got));
  for (size_t i = 0; i < sent.payloads.size(); ++i) {
    ASSERT_EQ(sent.payloads[i].size, got.payloads[i].size);
    ASSERT_TRUE(std::equal(sent.payloads[i].data, sent.payloads[i].data + sent.payloads[i].size,
                           got.payloads[i].data));
  }
}

std::string text_of(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

grpc::ByteBuffer message_of(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

class StreamCodecTest : public ::testing::Test {
 protected:
  absl::Status read(FrameReader& reader, const grpc::ByteBuffer& message) {
    return reader.read(
        message,
        [this](std::string hello) {
          hellos_.push_back(std::move(hello));
          return absl::OkStatus();
        },
        frames_);
  }

  TransportLimits limits_;
  BufferPool pool_{size_t{64} << 20};
  std::vector<std::string> hellos_;
  std::vector<Frame> frames_;
};

TEST_F(StreamCodecTest, RandomFramesArriveAsTheyWereSentInOrder) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const size_t sizes[] = {0, 1, 100, 4000, 32000, 33000, 65536, 1 << 20, (1 << 20) + 1, 5 << 20};
  for (int round = 0; round < 12; ++round) {
    FrameWriter writer;
    FrameReader reader(limits_, pool_, kFramesFirst);
    std::vector<FramePtr> sent;
    frames_.clear();
    for (uint64_t number = 1; number <= 30; ++number) {
      std::vector<size_t> payloads;
      for (uint64_t n = random() % 4; n > 0; --n) {
        payloads.push_back(sizes[random() % (random() % 8 == 0 ? std::size(sizes) : 6)]);
      }
      sent.push_back(frame_of(number, sizes[random() % 7], payloads));
      writer.push(sent.back());
      // Writing and queueing interleave, as they do on a stream.
      while (!writer.empty() && random() % 3 == 0) {
        ASSERT_TRUE(read(reader, writer.next()).ok());
      }
    }
    while (!writer.empty()) ASSERT_TRUE(read(reader, writer.next()).ok());
    EXPECT_EQ(writer.queued_bytes(), 0u);
    ASSERT_EQ(frames_.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) expect_same(*sent[i], frames_[i]);
  }
}

TEST_F(StreamCodecTest, SmallFramesShareAMessageAndAHelloComesFirst) {
  FrameWriter writer;
  for (uint64_t i = 1; i <= 50; ++i) writer.push(frame_of(i, 10, {20}));
  writer.push_hello("hello there");
  const grpc::ByteBuffer message = writer.next();
  EXPECT_TRUE(writer.empty());
  FrameReader reader(limits_, pool_, kHelloFirst);
  ASSERT_TRUE(read(reader, message).ok());
  EXPECT_EQ(hellos_, std::vector<std::string>{"hello there"});
  EXPECT_EQ(frames_.size(), 50u);
}

TEST_F(StreamCodecTest, LargePayloadsAreSentFromTheirOwnMemoryInChunks) {
  FramePtr frame = frame_of(1, 10, {size_t{5} << 20});
  const std::byte* const data = frame->payloads[0].data;
  FrameWriter writer;
  writer.push(frame);
  size_t messages = 0, pointing = 0;
  while (!writer.empty()) {
    const size_t before = writer.queued_bytes();
    const grpc::ByteBuffer message = writer.next();
    ++messages;
    EXPECT_LT(writer.queued_bytes(), before);  // it moves
    EXPECT_LE(message.Length(), (size_t{1} << 20) + 1024);
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(message.Dump(&slices).ok());
    for (const grpc::Slice& slice : slices) {
      const auto* begin = reinterpret_cast<const std::byte*>(slice.begin());
      if (begin >= data && begin < data + (size_t{5} << 20)) pointing += slice.size();
    }
  }
  EXPECT_GE(messages, 5u);
  EXPECT_EQ(pointing, size_t{5} << 20);
}

TEST_F(StreamCodecTest, LargeBodiesAreCutTooAndNoMessageIsTooLarge) {
  constexpr size_t kMiB = size_t{1} << 20;
  std::vector<std::pair<size_t, std::vector<size_t>>> frames;
  for (const size_t body : {kMiB, 2 * kMiB, 3 * kMiB + 5}) {
    frames.push_back({body, {}});
    frames.push_back({body, {3 * kMiB}});
    frames.push_back({body, std::vector<size_t>(65536, 40)});
  }
  // Heads around the size at which they are cut, and of about 1 MiB, and full chunks after them.
  for (size_t less = 0; less < 200; less += 4) {
    frames.push_back({kMiB - less, {kMiB + 100}});
    frames.push_back({kMiB - 4096 - less, {kMiB + 100}});
  }
  for (const auto& [body, payloads] : frames) {
    const FramePtr sent = frame_of(1, body, payloads);
    FrameWriter writer;
    writer.push(sent);
    writer.push(frame_of(2, 10, {}));
    FrameReader reader(limits_, pool_, kFramesFirst);
    frames_.clear();
    while (!writer.empty()) {
      const size_t before = writer.queued_bytes();
      const grpc::ByteBuffer message = writer.next();
      EXPECT_LE(message.Length(), static_cast<size_t>(kMostMessage));
      EXPECT_LT(writer.queued_bytes(), before);  // it moves
      ASSERT_TRUE(read(reader, message).ok());
    }
    EXPECT_EQ(writer.queued_bytes(), 0u);
    ASSERT_EQ(frames_.size(), 2u);
    expect_same(*sent, frames_[0]);
  }
}

// A far end that sends parts without end must not fill this end's memory.
TEST_F(StreamCodecTest, AHeadBeyondTheLimitIsRefusedInParts) {
  limits_.max_frame_bytes = 10000;
  FrameReader reader(limits_, pool_, kFramesFirst);
  const std::string part = sealed(unsealed_record(4, std::string(5000, 'x')));
  EXPECT_TRUE(read(reader, message_of(part)).ok());
  EXPECT_TRUE(read(reader, message_of(part)).ok());
  const absl::Status status = read(reader, message_of(sealed(unsealed_record(4, "x"))));
  EXPECT_EQ(status.message(), "a head of more than 10000 bytes, which a frame may have");
}

TEST_F(StreamCodecTest, PayloadsLiveUntilTheMessageIsGoneAndNoLonger) {
  FramePtr frame = frame_of(1, 10, {size_t{1} << 20});
  const std::weak_ptr<void> owner = frame->payloads[0].owner;
  FrameWriter writer;
  writer.push(std::move(frame));
  {
    std::vector<grpc::ByteBuffer> messages;
    while (!writer.empty()) messages.push_back(writer.next());
    EXPECT_FALSE(owner.expired());
  }
  EXPECT_TRUE(owner.expired());
}

TEST_F(StreamCodecTest, ClearForgetsAHalfWrittenFrame) {
  FrameWriter writer;
  writer.push(frame_of(1, 0, {size_t{3} << 20}));
  (void)writer.next();
  writer.clear();
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(writer.queued_bytes(), 0u);
  writer.push(frame_of(2, 0, {size_t{1} << 20}));
  FrameReader reader(limits_, pool_, kFramesFirst);
  while (!writer.empty()) ASSERT_TRUE(read(reader, writer.next()).ok());
  ASSERT_EQ(frames_.size(), 1u);
}

TEST_F(StreamCodecTest, AFrameBeyondTheLimitIsRefusedWithoutItsMemory) {
  limits_.max_frame_bytes = 1 << 20;
  FrameWriter writer;
  writer.push(frame_of(1, 0, {size_t{2} << 20}));
  FrameReader reader(limits_, pool_, kFramesFirst);
  EXPECT_EQ(read(reader, writer.next()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StreamCodecTest, ARefusedHelloEndsTheStream) {
  FrameWriter writer;
  writer.push_hello("x");
  FrameReader reader(limits_, pool_, kHelloFirst);
  const absl::Status status = reader.read(
      writer.next(), [](std::string) { return absl::PermissionDeniedError("no"); }, frames_);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
}

// Before its hello, a far end cannot make this end allocate anything.
TEST_F(StreamCodecTest, NothingComesBeforeAHelloAndNoSecondOneAfterIt) {
  const auto record = [](uint8_t kind, const std::string& content) {
    return sealed(unsealed_record(kind, content));
  };
  const std::string hello = record(0, "hello");
  const std::string head = record(2, encode_head(*frame_of(1, 3, {size_t{1} << 20})));
  const auto refusal = [&](FrameReader::Begins begins, const std::string& text) {
    FrameReader reader(limits_, pool_, begins);
    const absl::Status status = read(reader, message_of(text));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(kHelloFirst, head), "a record of kind 2 comes before the hello");
  EXPECT_EQ(pool_.idle_bytes(), 0u) << "it made room for the frame";
  EXPECT_EQ(refusal(kHelloFirst, hello + hello), "a hello is out of place");
  EXPECT_EQ(refusal(kFramesFirst, hello), "a hello is out of place");
  EXPECT_EQ(refusal(kHelloFirst, record(0, std::string(8193, 'x'))),
            "a hello of 8193 bytes exceeds 8192");
  FrameReader reader(limits_, pool_, kHelloFirst);
  EXPECT_TRUE(read(reader, message_of(record(0, std::string(8192, 'x')))).ok());
  EXPECT_TRUE(read(reader, message_of(head)).ok());
}

TEST_F(StreamCodecTest, RecordsOutOfPlaceAreRefused) {
  const auto record = [](uint8_t kind, const std::string& content) {
    return sealed(unsealed_record(kind, content));
  };
  const std::string small = encode_head(*frame_of(1, 3, {}));
  const std::string large = encode_head(*frame_of(1, 3, {100}));
  const std::string bad[] = {
      record(3, "a chunk without a head"),
      record(2, large) + record(1, small),  // a frame inside another
      record(2, large) + record(0, "hello"),
      record(2, large) + record(3, std::string(101, 'x')),
      record(2, small + "x"),
      record(1, small + "x"),
      record(1, large),
      record(1, large + std::string(99, 'x')),
      record(1, "short"),
      record(4, "a part") + record(0, "hello"),
      record(4, "a part") + record(1, small),
      record(4, "a part") + record(3, "x"),
      record(4, "a part") + record(2, small),
      record(2, large) + record(4, "a part"),
      record(5, "unknown"),
      record(255, ""),
      record(1, small).substr(0, 4),
      record(1, small).substr(0, 40),
  };
  for (const std::string& text : bad) {
    FrameReader reader(limits_, pool_, kFramesFirst);
    EXPECT_EQ(read(reader, message_of(text)).code(), absl::StatusCode::kInvalidArgument);
  }
  // Empty chunks, and chunks cut anywhere, are allowed.
  FrameReader reader(limits_, pool_, kFramesFirst);
  frames_.clear();
  ASSERT_TRUE(read(reader, message_of(record(2, large) + record(3, ""))).ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(read(reader, message_of(record(3, "y"))).ok());
  ASSERT_EQ(frames_.size(), 1u);
  EXPECT_EQ(static_cast<char>(frames_[0].payloads[0].data[99]), 'y');
}

// Each chunk once cost as much time as the frame has payloads.
TEST_F(StreamCodecTest, ManyEmptyChunksOfManyPayloadsAreReadInTime) {
  const std::string head = encode_head(*frame_of(1, 3, std::vector<size_t>(65536, 1)));
  const std::string empty = sealed(unsealed_record(3, ""));
  std::string text = sealed(unsealed_record(2, head));
  for (int i = 0; i < 1000000; ++i) text += empty;
  FrameReader reader(limits_, pool_, kFramesFirst);
  EXPECT_TRUE(read(reader, message_of(text)).ok());
  EXPECT_TRUE(frames_.empty());
}

// This excludes the content of chunks. What came before the changed bit is delivered.
TEST_F(StreamCodecTest, ABitThatChangedOnTheWayIsNoticed) {
  FrameWriter writer;
  writer.push_hello("hello");
  writer.push(frame_of(1, 20, {30, 0, 7}));
  writer.push(frame_of(2, 10, {40000, 100}));
  const std::string packed = text_of(writer.next());
  const std::string cut = text_of(writer.next());
  const auto expect_noticed = [this](std::string text, size_t bit, FrameReader::Begins begins) {
    frames_.clear();
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
    FrameReader reader(limits_, pool_, begins);
    EXPECT_FALSE(read(reader, message_of(text)).ok()) << "bit " << bit;
    EXPECT_TRUE(frames_.empty()) << "bit " << bit;
  };
  for (size_t bit = 0; bit < 8 * packed.size(); ++bit) expect_noticed(packed, bit, kHelloFirst);
  const size_t chunk = cut.size() - 40100 - 9 - 9;  // each payload has a chunk of its own
  for (size_t bit = 0; bit < 8 * (chunk + 9); ++bit) expect_noticed(cut, bit, kFramesFirst);
}

TEST_F(StreamCodecTest, CorruptedMessagesAreRefusedOrReadButNeverHarm) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  limits_.max_frame_bytes = 1 << 20;  // the most memory that a lie may cost
  std::string packed = unsealed_record(0, "hello");
  for (uint64_t i = 1; i <= 4; ++i) {
    packed += unsealed_record(1, encode_head(*frame_of(i, 20, {30, 0, 7})) + std::string(37, 'p'));
  }
  const std::string cut = unsealed_record(2, encode_head(*frame_of(5, 10, {40000, 100}))) +
                          unsealed_record(3, std::string(40100, 'p'));
  size_t refused = 0;
  for (int i = 0; i < 20000; ++i) {
    FrameReader reader(limits_, pool_, kHelloFirst);
    frames_.clear();
    for (std::string text : {packed, cut}) {
      const size_t reach = std::min<size_t>(text.size(), 1200);  // where the structure is
      for (uint64_t n = 1 + random() % 3; n > 0; --n) {
        text[random() % reach] = static_cast<char>(random());
      }
      if (random() % 8 == 0) text.resize(random() % text.size());
      if (absl::Status status = read(reader, message_of(sealed(text))); !status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
        ++refused;
        break;
      }
    }
    for (const Frame& frame : frames_) {
      ASSERT_LE(frame.cost(), limits_.max_frame_bytes + Frame::kFrameOverhead);
    }
  }
  EXPECT_GT(refused, 10000u);
}

}  // namespace
}  // namespace weft::rpc_internal
