// Frames through a ring whose shared memory a peer overwrites. The input is a byte for the size of
// the ring and then a sequence of steps: of both ends, and of the peer. Before the peer's first
// step, each frame arrives once and as it was sent. After it, an end may refuse, and a frame that
// comes is within the limits.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/rpc/same_host/connection/ring_frames.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using rpc_internal::RingFrameReader;
using rpc_internal::RingFrameWriter;

const TransportLimits kLimits{.max_frame_bytes = size_t{1} << 16, .max_payloads = 64};

std::string text_of(const Frame& frame) {
  std::string text = rpc_internal::encode_head(frame);
  for (const Payload& payload : frame.payloads) {
    text.append(reinterpret_cast<const char*>(payload.data), payload.size);
  }
  return text;
}

class Run {
 public:
  explicit Run(Bytes input)
      : input_(input),
        size_(size_t{256} << input_.below(4)),
        bytes_(std::make_unique<std::byte[]>(size_)),
        header_(std::make_unique<RingHeader>()),
        ring_writer_(*header_, {bytes_.get(), size_}),
        ring_reader_(*header_, {bytes_.get(), size_}, rpc_internal::kLastRingRecord),
        writer_(ring_writer_),
        reader_(ring_reader_, pool_, kLimits) {}

  void play() {
    while (!input_.empty() && !refused_) step();
    if (!honest_ || refused_) return;
    writer_.push_close();
    while (!closed_) {
      pump();
      read(size_);
    }
    require(writer_.idle(), "a closed ring with frames that wait");
    require(sent_.empty(), "a frame is lost");
    require(done_ == pushed_, "a frame is not given back");
    require(writer_.small_bytes().taken == writer_.small_bytes().written &&
                writer_.large_bytes().taken == writer_.large_bytes().written,
            "a wrong count");
  }

 private:
  void step() {
    switch (input_.below(8)) {
      case 0:
        overwrite();
        break;
      case 1:
        move_position();
        break;
      case 2:
        peer_writes();
        break;
      case 3:
      case 4:
        push();
        break;
      case 5:
        pump();
        break;
      default:
        read(1 + input_.number<uint8_t>() * size_t{8});
    }
  }

  // ---- the peer

  void overwrite() {
    honest_ = false;
    const size_t offset = input_.number<uint16_t>() % size_;
    const std::string_view text = input_.take(input_.below(64));
    std::memcpy(bytes_.get() + offset, text.data(), std::min(text.size(), size_ - offset));
  }
  void move_position() {
    honest_ = false;
    const auto by = static_cast<uint64_t>(input_.number<int8_t>() * int64_t{16});
    (input_.flag() ? header_->tail : header_->head) += by;
  }
  // A whole record of any kind and content, in its place.
  void peer_writes() {
    honest_ = false;
    const auto kind = static_cast<uint16_t>(1 + input_.below(6));
    std::string content(input_.chunk());
    content.resize(std::min(content.size(), ring_writer_.largest()));
    const auto room = ring_writer_.reserve(kind, content.size());
    if (!room.ok() || !room->has_value()) return;
    std::memcpy((*room)->data(), content.data(), content.size());
    ring_writer_.commit();
  }

  // ---- the ends

  void push() {
    Frame frame;
    frame.header.kind = FrameKind::kCall;
    frame.header.sequence = pushed_;
    frame.body = std::string(input_.below(64), 'b');
    for (size_t left = input_.below(4); left > 0; --left) {
      const size_t size = input_.number<uint16_t>() % 2048;
      Payload payload = pool_.take(size);
      std::memset(payload.data, static_cast<int>(pushed_ + left), size);
      frame.payloads.push_back(std::move(payload));
    }
    sent_[pushed_++] = text_of(frame);
    writer_.push(std::make_shared<const Frame>(std::move(frame)));
  }

  void allow(const absl::Status& status) {
    if (status.ok()) return;
    require(!honest_, "an honest peer was refused");
    require_refusal(status);
    refused_ = true;
  }

  void pump() {
    std::vector<FramePtr> done;
    allow(writer_.pump(done).status());
    done_ += done.size();
  }

  void read(size_t most) {
    std::vector<Frame> frames;
    const absl::StatusOr<RingFrameReader::Result> result = reader_.read(most, frames);
    allow(result.status());
    if (result.ok()) closed_ = result->closed;
    for (const Frame& frame : frames) {
      const std::string text = text_of(frame);
      require(text.size() <= kLimits.max_frame_bytes, "a frame beyond the limit");
      require(frame.payloads.size() <= kLimits.max_payloads, "too many payloads");
      if (!honest_) continue;
      const auto found = sent_.find(frame.header.sequence);
      require(found != sent_.end(), "a frame came twice");
      require(found->second == text, "a frame has changed");
      sent_.erase(found);
    }
  }

  Bytes input_;
  const size_t size_;
  const std::unique_ptr<std::byte[]> bytes_;
  const std::unique_ptr<RingHeader> header_;
  rpc_internal::BufferPool pool_;
  RingWriter ring_writer_;
  RingReader ring_reader_;
  RingFrameWriter writer_;
  RingFrameReader reader_;
  bool honest_ = true;  // the peer has not done anything yet
  bool refused_ = false;
  bool closed_ = false;
  std::map<uint64_t, std::string> sent_;  // by sequence; not read yet
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
