// Writes frames as the messages of one gRPC stream, and reads them back. Many small frames share a
// message. Large payloads are cut into chunks, whose slices point at the sender's memory.
//
// Thread safety: none. Only the write operation of a stream uses its FrameWriter, and only the read
// operation uses its FrameReader.
// Wire: a message is a sequence of records: u8 kind, u32 size, u32 checksum, content.
//
// - kHello: the accepting end's answer, a wire::Hello. No record precedes it.
//
// - kFrame: a whole frame, its head and then its payloads.
//
// - kHead: the head of a frame, or its last part. The payloads follow, in order, as kChunk records
//   of this message and the next ones. No other record comes between.
//
// - kHeadPart: the next bytes of a head that is too long for one message. It is alone in its
//   message. Only kHeadPart or kHead may follow.
//
// The checksum (record_checksum.h) covers kind, size and content. For a chunk it does not cover the
// content, because that would cost a pass over large tensors at both ends.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "weft/rpc/transport/buffer_pool.h"
#include "weft/rpc/transport/frame.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

// No message has more bytes. gRPC refuses larger ones, from members too, before it has them whole.
inline constexpr int kMostMessage = 2 << 20;

class FrameWriter {
 public:
  void push_hello(std::string hello) { hello_ = std::move(hello); }
  void push(FramePtr frame);
  bool empty() const { return hello_.empty() && queue_.empty(); }
  // The part of the pushed frames' cost (Frame::cost) that is in no message yet.
  size_t queued_bytes() const { return queued_bytes_; }
  // Returns the next message. There is one unless empty().
  grpc::ByteBuffer next();
  void clear();

 private:
  // How much of the first queued frame is in messages already, if it is a large one.
  struct Progress {
    bool head_written = false;
    std::string head;  // if it is written in parts
    size_t head_offset = 0;
    size_t head_counted = 0;  // of the head's cost
    size_t payload = 0;
    size_t offset = 0;
  };
  void add_chunk(std::vector<grpc::Slice>& slices);
  // Writes the head of the frame, or a part of it.
  void add_head(const Frame& frame, std::vector<grpc::Slice>& slices);

  std::string hello_;
  std::deque<FramePtr> queue_;
  Progress progress_;
  size_t queued_bytes_ = 0;
};

class FrameReader {
 public:
  // Says what the stream begins with. kWithFrames: the hello came in another way, and a kHello
  // record is an error.
  enum class Begins { kWithHello, kWithFrames };
  FrameReader(const TransportLimits& limits, BufferPool& pool, Begins begins)
      : limits_(limits), pool_(pool), awaits_hello_(begins == Begins::kWithHello) {}

  // Takes one message apart and appends the frames that it completes. After an error the stream is
  // of no further use, but the appended frames are valid.
  absl::Status read(const grpc::ByteBuffer& message,
                    const std::function<absl::Status(std::string hello)>& on_hello,
                    std::vector<Frame>& frames);

 private:
  class Cursor;
  absl::Status take_frame(std::string_view record, std::vector<Frame>& frames);
  absl::Status take_head(std::string_view record, std::vector<Frame>& frames);
  absl::Status take_chunk(Cursor& cursor, size_t size, std::vector<Frame>& frames);

  const TransportLimits& limits_;
  BufferPool& pool_;
  bool awaits_hello_;
  std::string head_;      // the parts of a head that have come
  bool filling_ = false;  // a kHead has come, but not all of its chunks
  Frame partial_;
  size_t payload_ = 0;
  size_t offset_ = 0;
  size_t missing_ = 0;  // bytes of its payloads that have not come
};

}  // namespace weft::rpc_internal
