// Turns frames into records of a ring in shared memory (shm/byte_ring.h), and back.
//
// A frame that fits one record is one record: its head, then its payloads. A larger frame is cut
// into pieces, which share the ring with small frames and with the pieces of other large frames.
// So a small frame never waits until a large one is through. Small frames go first, but a large
// frame gets its turn after a ring's worth of them, so that it moves however many there are.
//
// Large payloads need not be in the ring at all: their bytes may lie in blocks that the writer
// lends to the reader (shm/blocks/block_arena.h). Such a frame is a small one.
//
//   record   content
//   FRAME    the head (rpc/transport/frame_codec.h), then the bytes of all payloads
//   LENT     the head, one {u32 segment, u32 generation, u64 offset} for each payload, then the
//            bytes of the payloads with generation 0. The other ones lie in lent blocks.
//   OPEN     u32 stream, u32 bytes of the head, u64 bytes of all payloads
//   PIECE    u32 stream, u32 zero, the next bytes of this frame (head, then payloads)
//   RETIRE   u32 segment, u32 zero: the writer has dropped this segment
//   CLOSE    nothing: the writer sends no more
//
// Thread safety: none. One thread at a time uses a writer, and one thread at a time uses a reader.
// Lifetime: the ring's writer or reader must outlive this object, and so must the LentPayloads.
// Errors: InvalidArgument (the peer broke the protocol; the text names the field), and those of
// frame_codec.h. ResourceExhausted: no memory for a payload. The connection must end then.
// Protocol: docs/data_plane.md, "Frames in a ring".
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/rpc/transport/buffer_pool.h"
#include "weft/rpc/transport/frame.h"
#include "weft/rpc/transport/transport.h"
#include "weft/shm/byte_ring.h"
#include "weft/shm/lending.h"

namespace weft::rpc_internal {

enum RingRecordKind : uint16_t {
  kFrameRecord = 1,
  kOpenRecord = 2,
  kPieceRecord = 3,
  kCloseRecord = 4,
  kLentRecord = 5,
  kRetireRecord = 6,
  kLastRingRecord = kRetireRecord,
};

// Large frames that are cut into pieces at the same time.
inline constexpr size_t kMostStreams = 16;

// One for each payload of a frame. Generation 0: this payload is not lent. Empty: none is.
using Lendings = std::vector<Lending>;

// Gets the payloads that the writer has lent.
class LentPayloads {
 public:
  virtual ~LentPayloads() = default;
  // The payload keeps the block until its owner object dies.
  virtual absl::StatusOr<Payload> borrow(const Lending& lending, size_t size) = 0;
  // Gives a block back that nobody has borrowed, because its frame is of no use.
  virtual void decline(const Lending& lending) = 0;
  virtual absl::Status retire(uint32_t segment) = 0;
};

class RingFrameWriter {
 public:
  explicit RingFrameWriter(RingWriter& ring) : ring_(ring) {}

  // Queues a frame. pump() writes it. If payloads are lent, lent_fits() is true for the frame.
  void push(FramePtr frame, Lendings lendings = {});
  // Tells the reader that a segment is dropped, before the frames that are pushed from now on.
  void push_retired(uint32_t segment) { retired_.push_back(segment); }
  // The last record, after all frames that are queued now.
  void push_close() { close_ = true; }

  // Writes what fits and publishes it. True: something was published, so the reader must be
  // signalled. If frames are left, the reader will say when there is room, and pump() must be
  // called again. Frames that are through are moved to `done`: the caller drops them outside of its
  // locks, because a tensor's deleter may be the user's code.
  absl::StatusOr<bool> pump(std::vector<FramePtr>& done);

  // Moves the frames that are queued or not through to `done`. Nothing must be pushed after this.
  void drop(std::vector<FramePtr>& done);

  // Whether all that was pushed is published.
  bool idle() const {
    return small_.empty() && large_.empty() && streams_.empty() && retired_.empty() &&
           (!close_ || closed_);
  }
  // Whether the frame fits one record of a ring. Only such frames keep their order.
  static bool is_small(const Frame& frame, size_t ring_bytes);
  // The same if all payloads of at least `least_lent` bytes are lent.
  static bool lent_fits(const Frame& frame, size_t least_lent, size_t ring_bytes);

  // Returns the lendings that the reader has not read, and forgets them. Call it after drop(), when
  // the reader has read for the last time. Nothing, if the reader's position breaks the protocol:
  // then only its death ends the lendings.
  Lendings take_unread();
  // Bytes (Frame::cost) of small frames and of large ones.
  const StreamBytes& small_bytes() const { return small_bytes_; }
  const StreamBytes& large_bytes() const { return large_bytes_; }

 private:
  struct Small {
    FramePtr frame;
    Lendings lendings;
  };
  // A lending whose record ends at this position of the ring.
  struct Published {
    uint64_t end;
    Lending lending;
  };
  // A frame that is cut into pieces.
  struct Stream {
    uint32_t number = 0;
    FramePtr frame;
    std::string head;
    size_t part = 0;      // 0: the head; n: payload n - 1
    size_t offset = 0;    // within the part
    size_t left = 0;      // bytes of all parts that are not written
    bool opened = false;  // OPEN is written
  };

  bool large_turn() const;
  // Each returns false if the ring has no room.
  absl::StatusOr<bool> write_retired();
  absl::StatusOr<bool> write_small(std::vector<FramePtr>& done);
  absl::StatusOr<bool> write_piece(std::vector<FramePtr>& done);
  static void copy_out(Stream& stream, std::span<std::byte> to);

  RingWriter& ring_;
  std::deque<uint32_t> retired_;
  std::deque<Small> small_;
  std::deque<Published> published_;  // what the reader may not have read
  std::deque<FramePtr> large_;       // not begun
  std::deque<Stream> streams_;       // begun; each gets its turn
  uint32_t next_stream_ = 1;
  size_t since_piece_ = 0;  // bytes of small frames since the last piece
  bool close_ = false;
  bool closed_ = false;
  StreamBytes small_bytes_;
  StreamBytes large_bytes_;
};

class RingFrameReader {
 public:
  // `lent`: null if the writer may not lend anything.
  RingFrameReader(RingReader& ring, BufferPool& pool, TransportLimits limits,
                  LentPayloads* lent = nullptr)
      : ring_(ring), pool_(pool), limits_(limits), lent_(lent) {}

  struct Result {
    bool more = false;         // it stopped at `most_bytes`, and there may be more records
    bool closed = false;       // CLOSE came: nothing follows
    bool wake_writer = false;  // the writer must be signalled, because it waits for room
  };
  // Takes records until `most_bytes` are read, and appends the frames that are complete. Also after
  // an error, the ring's position then shows which records were read.
  absl::StatusOr<Result> read(size_t most_bytes, std::vector<Frame>& frames);
  // Frees the large frames of which pieces are missing. Nothing must be read after this.
  void drop() { streams_.clear(); }

 private:
  // A frame whose pieces come.
  struct Stream {
    std::string head;
    size_t head_bytes = 0;
    size_t payload_bytes = 0;
    Frame frame;         // once the head is complete
    size_t payload = 0;  // the payload that comes, and how much of it is there
    size_t offset = 0;
    size_t left = 0;  // bytes of payloads that are to come
  };

  absl::Status take(const RingRecord& record, std::vector<Frame>& frames);
  absl::Status take_all(size_t most_bytes, std::vector<Frame>& frames, Result& result);
  absl::Status take_frame(std::string_view content, std::vector<Frame>& frames);
  absl::Status take_lent(std::string_view content, std::vector<Frame>& frames);
  // Copies one payload and moves `bytes` behind it.
  absl::Status take_bytes(std::string_view& bytes, Payload& payload);
  absl::Status take_retired(std::string_view content);
  absl::Status take_open(std::string_view content);
  absl::Status take_close(std::string_view content);
  absl::Status take_piece(std::string_view content, std::vector<Frame>& frames);

  RingReader& ring_;
  BufferPool& pool_;
  const TransportLimits limits_;
  LentPayloads* const lent_;
  absl::flat_hash_map<uint32_t, Stream> streams_;
  bool closed_ = false;
};

}  // namespace weft::rpc_internal
