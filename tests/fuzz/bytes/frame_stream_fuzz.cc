// The messages of one stream. The input is a sequence of messages: u16 size, u8 position of a cut,
// then records. The target adds the checksums of the records, or no record would be accepted.
// Frames that arrive must arrive again when they are sent on.
#include <grpcpp/support/byte_buffer.h>

#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/rpc/transport/internal/stream_codec.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/tests/fuzz/fuzz.h"
#include "weft/tests/rpc/support/records.h"

namespace weft::fuzz {
namespace {

const TransportLimits kLimits{.max_frame_bytes = size_t{1} << 20, .max_payloads = 64};

// Two slices, because the reader must read across slices without joining them.
grpc::ByteBuffer message_of(std::string_view text, size_t cut) {
  cut = std::min(cut, text.size());
  const grpc::Slice slices[] = {grpc::Slice(text.data(), cut),
                                grpc::Slice(text.data() + cut, text.size() - cut)};
  return grpc::ByteBuffer(slices, 2);
}

absl::Status take_hello(const std::string& text) {
  wire::Hello hello;
  if (!hello.ParseFromString(text)) return absl::InvalidArgumentError("a hello cannot be parsed");
  if (hello.has_refused()) {
    require(!rpc_internal::decode_status(hello.refused()).ok(), "a refusal reads as OK");
  }
  return absl::OkStatus();
}

std::string text_of(const Payload& payload) {
  return std::string(reinterpret_cast<const char*>(payload.data), payload.size);
}

void require_same(const Frame& sent, const Frame& got) {
  require(rpc_internal::encode_head(sent) == rpc_internal::encode_head(got), "a head has changed");
  for (size_t i = 0; i < sent.payloads.size(); ++i) {
    require(text_of(sent.payloads[i]) == text_of(got.payloads[i]), "a payload has changed");
  }
}

void send_on(std::vector<Frame> frames, rpc_internal::BufferPool& pool) {
  rpc_internal::FrameWriter writer;
  std::vector<FramePtr> sent;
  for (Frame& frame : frames) sent.push_back(std::make_shared<const Frame>(std::move(frame)));
  for (const FramePtr& frame : sent) writer.push(frame);
  rpc_internal::FrameReader reader(kLimits, pool, rpc_internal::FrameReader::Begins::kWithFrames);
  std::vector<Frame> got;
  while (!writer.empty()) {
    const absl::Status read = reader.read(
        writer.next(), [](const std::string&) { return absl::OkStatus(); }, got);
    require(read.ok(), "what was written cannot be read");
  }
  require(writer.queued_bytes() == 0, "a writer without frames that counts bytes");
  require(got.size() == sent.size(), "frames are lost");
  for (size_t i = 0; i < got.size(); ++i) require_same(*sent[i], got[i]);
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  weft::rpc_internal::BufferPool pool(size_t{1} << 20);
  using Begins = weft::rpc_internal::FrameReader::Begins;
  // If the first record is a hello, this is the dialling side, otherwise the accepting side.
  const bool hello_first = size > 3 && data[3] == 0;
  weft::rpc_internal::FrameReader reader(kLimits, pool,
                                         hello_first ? Begins::kWithHello : Begins::kWithFrames);
  std::vector<weft::Frame> frames;
  Bytes input(data, size);
  while (!input.empty()) {
    const size_t length = input.number<uint16_t>();
    const size_t cut = input.number<uint8_t>();
    const std::string text = weft::rpc_internal::sealed(input.take(length));
    const absl::Status read = reader.read(message_of(text, cut), take_hello, frames);
    if (read.ok()) continue;
    require_refusal(read);
    break;
  }
  send_on(std::move(frames), pool);
  return 0;
}
