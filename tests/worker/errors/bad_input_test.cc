// A member sends what no Weft program would send, or options name addresses that do not exist.
//
// Each is an error with a name. The worker goes on, and nothing of the bad input is left.
#include <random>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/worker_world.h"
#include "weft/tests/worker/raw_peer.h"

namespace bad_input_test {

using ::testing::HasSubstr;
using weft::Frame;
using weft::FrameKind;
using weft::WorkerOptions;
using weft::testing::RawPeer;
using weft::testing::WorkerWorld;

int64_t length(const std::string& text, const at::Tensor& tensor) {
  return static_cast<int64_t>(text.size()) + tensor.dim();
}
WEFT_REGISTER_FUNCTION(length);
void ping() {}
WEFT_REGISTER_FUNCTION(ping);

const weft::Function<int64_t(std::string, at::Tensor)> kLength{"bad_input_test::length"};
const weft::Function<void()> kPing{"bad_input_test::ping"};

class BadInputTest : public ::testing::Test {
 protected:
  ~BadInputTest() override {
    weft::rpc_sync(peer_.worker().to("worker1"), ping);
    const auto busy = [&] {
      const weft::DebugInfo info = peer_.worker().debug_info();
      return info.agent.running_calls + info.agent.pending_calls + info.owned_values + info.forks +
             info.references + info.contexts + info.passes + info.recorded_sends;
    };
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (busy() != 0 && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
    EXPECT_EQ(busy(), 0u);
  }

  // A good call of `length`: one string of three bytes and one inlined tensor of two floats.
  Frame good() {
    Frame frame = RawPeer::call_of(++number_, kLength.key());
    weft::Writer writer;
    weft::Codec<std::string>::encode(writer, "abc");
    writer.scalar(uint8_t{1});
    frame.body = writer.body();
    frame.header.value_bytes = static_cast<uint32_t>(frame.body.size());
    std::vector<at::Tensor> tensors{at::ones({2})};
    EXPECT_TRUE(weft::encode_tensors(std::move(tensors), {}, frame).ok());
    return frame;
  }
  absl::Status answer(Frame frame) {
    const uint64_t number = frame.header.call;
    peer_.send(std::move(frame));
    return peer_.reply_to(number);
  }
  static std::string noise(std::mt19937_64& random, size_t size) {
    std::string text(size, '\0');
    for (char& c : text) c = static_cast<char>(random());
    return text;
  }

  RawPeer peer_;
  uint64_t number_ = 0;
};

TEST_F(BadInputTest, ACallThatCannotBeReadIsRefusedWithWhatIsWrong) {
  struct Case {
    const char* says;
    std::function<void(Frame&)> spoil;
  };
  const std::vector<Case> cases{
      {"meta", [](Frame& f) { f.meta = "\xff\xff"; }},
      {"has no function", [](Frame& f) { f.header.function = 1; }},
      {"'bad_input_test::length'", [](Frame& f) { f.header.fingerprint ^= 1; }},
      {"argument 1 of 'bad_input_test::length'",
       [](Frame& f) { f.body.clear(), f.header.value_bytes = 0; }},
      {"argument 1 of 'bad_input_test::length'", [](Frame& f) { f.body[1] = 'x'; }},
      {"argument 2 of 'bad_input_test::length'",
       [](Frame& f) { f.body.resize(f.header.value_bytes); }},
      {"tensor", [](Frame& f) { f.body[f.header.value_bytes] ^= 0x40; }},
      {"tensor", [](Frame& f) { f.body += "more"; }},
      {"too much memory",
       [](Frame& f) {
         const std::string scalar("\x01\x01\x00\x01\x00x", 6);
         for (int i = 0; i < 1 << 20; ++i) f.body += scalar;
       }},
      {"payload",
       [](Frame& f) {
         auto block = std::make_shared<std::vector<std::byte>>(16);
         f.payloads.push_back({block->data(), 16, block});
       }},
      {"RRefReference",
       [](Frame& f) {
         weft::wire::Meta meta;
         meta.add_references("garbage");
         f.meta = meta.SerializeAsString();
       }},
      {"",
       [](Frame& f) {
         weft::wire::Meta meta;
         meta.set_target("garbage");
         f.meta = meta.SerializeAsString();
       }},
      {"",
       [](Frame& f) {
         weft::wire::Meta meta;
         meta.set_creation("garbage");
         f.meta = meta.SerializeAsString();
         f.header.flags = weft::kFlagObject;
       }},
      {"", [](Frame& f) { f.header.flags = weft::kFlagObject; }},
      {"",
       [](Frame& f) {
         weft::wire::Meta meta;
         meta.set_autograd("\xff garbage");
         f.meta = meta.SerializeAsString();
       }},
  };
  EXPECT_TRUE(answer(good()).ok());
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    Frame frame = good();
    cases[i].spoil(frame);
    const absl::Status status = answer(std::move(frame));
    EXPECT_THAT(status.code(), ::testing::AnyOf(absl::StatusCode::kInvalidArgument,
                                                absl::StatusCode::kUnimplemented))
        << status;
    EXPECT_EQ(weft::ran_of(status), weft::Ran::kNo) << status;
    EXPECT_EQ(weft::worker_of(status), "worker1");
    EXPECT_THAT(std::string(status.message()), HasSubstr(cases[i].says));
  }
}

TEST_F(BadInputTest, RepliesAndCancelsOfNothingAreIgnored) {
  Frame reply;
  reply.header.kind = FrameKind::kReply;
  reply.header.call = 77;
  reply.meta = "\xff";
  peer_.send(std::move(reply));
  peer_.cancel(78);
  EXPECT_TRUE(answer(good()).ok());
}

// A room may ignore such posts, or declare their sender dead.
TEST(BadPostTest, NonsenseForAnyRoomHarmsNobodyElse) {
  for (uint64_t topic = 0; topic < 8; ++topic) {
    for (const std::string& body :
         {std::string(), std::string("garbage"), std::string(300, '\xff')}) {
      RawPeer peer;
      Frame frame;
      frame.header.kind = FrameKind::kPost;
      frame.header.function = topic;
      frame.body = frame.meta = body;
      frame.header.value_bytes = static_cast<uint32_t>(body.size() / 2);
      peer.send(std::move(frame));
      peer.call(1, kPing.key());
      EXPECT_THAT(peer.reply_to(1).code(),
                  ::testing::AnyOf(absl::StatusCode::kOk, absl::StatusCode::kCancelled));
      weft::rpc_sync(peer.worker().to("worker1"), ping);
    }
  }
}

TEST_F(BadInputTest, RandomChangesToGoodCallsAreAnsweredOneByOne) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  size_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    Frame frame = good();
    for (uint64_t n = random() % 4; n > 0; --n) {
      switch (random() % 4) {
        case 0:
          frame.body[random() % frame.body.size()] = static_cast<char>(random());
          break;
        case 1:
          frame.meta = noise(random, random() % 40);
          break;
        case 2:
          frame.header.value_bytes = static_cast<uint32_t>(random() % (frame.body.size() + 1));
          break;
        default:
          frame.body += noise(random, random() % 20);
      }
    }
    const absl::Status status = answer(std::move(frame));
    ASSERT_NE(status.code(), absl::StatusCode::kCancelled) << status << " in round " << i;
    ASSERT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status << " in round " << i;
    refused += !status.ok();
  }
  EXPECT_GT(refused, 1000u);
}

class LiesTest : public BadInputTest {
 protected:
  // The worker closes the connection, and either declares the sender dead or takes nothing from it.
  void expect_end(Frame frame) {
    frame.header.kind = FrameKind::kPost;
    peer_.send(std::move(frame));
    EXPECT_TRUE(peer_.wait_for_end());
  }
};

TEST_F(LiesTest, AnAcknowledgementOfWhatWasNeverSentEndsIt) {
  Frame frame;
  frame.header.acknowledged = 1000;
  expect_end(std::move(frame));
  const absl::Status status = weft::rpc_async(peer_.worker().to("raw"), ping).result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'raw' (w0.1) broke the session protocol"));
  EXPECT_EQ(peer_.worker().debug_info().agent.live_peers, 1u);
}

TEST_F(LiesTest, CreditForWhatWasNeverChargedEndsIt) {
  Frame frame;
  frame.header.credit_bytes = 1000;
  expect_end(std::move(frame));
}

TEST_F(LiesTest, AnotherSourceEndsIt) {
  Frame frame;
  frame.header.source = {1, 1};
  expect_end(std::move(frame));
}

TEST_F(LiesTest, AnEarlierIncarnationOfTheReceiverEndsIt) {
  Frame frame;
  frame.header.destination = {1, 77};
  expect_end(std::move(frame));
}

// ---- Addresses that do not exist

absl::Status join_error(WorkerOptions options) {
  try {
    weft::Worker::join(std::move(options));
  } catch (const weft::RpcError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

TEST(BadPlaceTest, ARendezvousThatNobodyHostsIsNamed) {
  WorkerOptions options;
  options.place.rank = 1;
  options.place.world_size = 2;
  options.place.master_addr = "127.0.0.1";
  options.place.master_port = 1;
  options.join_timeout = absl::Milliseconds(300);
  const absl::Status status = join_error(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

TEST(BadPlaceTest, AListenHostThatIsNotThisOneIsNamed) {
  WorkerWorld world(0);
  WorkerOptions options = world.options_of(0, 1);
  options.transport = nullptr;
  options.listen_host = "192.0.2.1";  // reserved for documentation: nobody has it
  const absl::Status status = join_error(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1"));
}

}  // namespace bad_input_test
