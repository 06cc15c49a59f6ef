#include "weft/rpc/transport/internal/stream_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/rpc/transport/hello.h"
#include "weft/rpc/transport/internal/record_checksum.h"

namespace weft::rpc_internal {
namespace {

enum Record : uint8_t { kHello = 0, kFrame = 1, kHead = 2, kChunk = 3, kHeadPart = 4 };

// Frames up to this size are copied into a shared message.
constexpr size_t kPackedFrame = size_t{32} << 10;
// A message takes no further frame once it has this many bytes.
constexpr size_t kMessage = size_t{64} << 10;
// A message reserves at most this at first, because glibc consolidates its bins when 64 KiB or more
// are freed.
constexpr size_t kReserved = size_t{60} << 10;
// A message has at most this many bytes of a large frame's payloads and the headers between them.
constexpr size_t kChunkBytes = size_t{1} << 20;
// The last part of a head shares its message with payloads, and all headers have room beside them.
constexpr size_t kHeadBytes = kChunkBytes - (size_t{4} << 10);
constexpr size_t kRecordHeader = 9;

constexpr size_t kChecksumAt = 5;  // after kind and size

void append_record_header(std::string& out, Record kind, size_t size, uint32_t checksum) {
  const auto length = static_cast<uint32_t>(size);
  out.push_back(static_cast<char>(kind));
  out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
}

// Appends a record whose content `append` appends.
template <class Append>
void append_record(std::string& out, Record kind, size_t size, Append append) {
  const size_t record = out.size();
  append_record_header(out, kind, size, 0);
  const size_t content = out.size();
  append();
  const uint32_t checksum =
      record_checksum(kind, static_cast<uint32_t>(size), std::string_view(out).substr(content));
  std::memcpy(out.data() + record + kChecksumAt, &checksum, sizeof(checksum));
}

grpc::Slice slice_of(std::string text) {
  auto* owned = new std::string(std::move(text));
  return grpc::Slice(
      owned->data(), owned->size(), [](void* p) { delete static_cast<std::string*>(p); }, owned);
}

}  // namespace

void FrameWriter::push(FramePtr frame) {
  queued_bytes_ += frame->cost();
  queue_.push_back(std::move(frame));
}

void FrameWriter::clear() {
  hello_.clear();
  queue_.clear();
  progress_ = {};
  queued_bytes_ = 0;
}

grpc::ByteBuffer FrameWriter::next() {
  std::vector<grpc::Slice> slices;
  std::string packed;
  if (!hello_.empty()) {
    append_record(packed, kHello, hello_.size(), [&] { packed += hello_; });
    hello_.clear();
  }
  while (!queue_.empty() && packed.size() < kMessage) {
    const Frame& frame = *queue_.front();
    const size_t head = head_bytes(frame);
    const size_t whole = head + frame.payload_bytes();
    if (whole > kPackedFrame) break;
    if (packed.empty()) packed.reserve(std::min(queued_bytes_, kReserved));
    append_record(packed, kFrame, whole, [&] {
      append_head(frame, packed);
      for (const Payload& payload : frame.payloads) {
        packed.append(reinterpret_cast<const char*>(payload.data), payload.size);
      }
    });
    queued_bytes_ -= frame.cost();
    queue_.pop_front();
  }
  if (!packed.empty()) {
    slices.push_back(slice_of(std::move(packed)));
  } else if (!queue_.empty()) {
    add_chunk(slices);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

void FrameWriter::add_head(const Frame& frame, std::vector<grpc::Slice>& slices) {
  std::string text;
  if (const size_t size = head_bytes(frame); size <= kHeadBytes) {
    append_record(text, kHead, size, [&] { append_head(frame, text); });
    progress_.head_written = true;
  } else {
    if (progress_.head.empty()) append_head(frame, progress_.head);
    const size_t part = std::min(kHeadBytes, size - progress_.head_offset);
    progress_.head_written = progress_.head_offset + part == size;
    append_record(text, progress_.head_written ? kHead : kHeadPart, part,
                  [&] { text.append(progress_.head, progress_.head_offset, part); });
    progress_.head_offset += part;
    if (progress_.head_written) progress_.head = {};
  }
  slices.push_back(slice_of(std::move(text)));
}

void FrameWriter::add_chunk(std::vector<grpc::Slice>& slices) {
  const FramePtr frame = queue_.front();
  // Each message counts at once: a large frame that moves must not look like one that hangs.
  const size_t head_cost = frame->cost() - frame->payload_bytes() - progress_.head_counted;
  if (!progress_.head_written) add_head(*frame, slices);
  if (!progress_.head_written) {
    const size_t part = std::min(head_cost, kHeadBytes);
    progress_.head_counted += part;
    queued_bytes_ -= part;
    return;
  }
  size_t written = 0;
  size_t room = kChunkBytes;
  while (progress_.payload < frame->payloads.size() && room > 0) {
    const Payload& payload = frame->payloads[progress_.payload];
    const size_t size = std::min(room, payload.size - progress_.offset);
    if (size > 0) {
      std::string header;
      append_record_header(header, kChunk, size,
                           record_checksum(kChunk, static_cast<uint32_t>(size), {}));
      slices.push_back(grpc::Slice(header));
      // The slice keeps the frame alive, and the frame keeps its payloads alive.
      slices.push_back(grpc::Slice(
          payload.data + progress_.offset, size, [](void* p) { delete static_cast<FramePtr*>(p); },
          new FramePtr(frame)));
      progress_.offset += size;
      room -= std::min(room, size + kRecordHeader);
      written += size;
    }
    if (progress_.offset == payload.size) {
      ++progress_.payload;
      progress_.offset = 0;
    }
  }
  if (progress_.payload == frame->payloads.size()) {
    written += head_cost;
    queue_.pop_front();
    progress_ = {};
  }
  queued_bytes_ -= written;
}

// Reads through the slices of a message without joining them.
class FrameReader::Cursor {
 public:
  explicit Cursor(const grpc::ByteBuffer& message) {
    ok_ = message.Dump(&slices_).ok();
    for (const grpc::Slice& slice : slices_) remaining_ += slice.size();
  }

  size_t remaining() const { return remaining_; }
  bool at_end() {
    while (slice_ < slices_.size() && offset_ == slices_[slice_].size()) {
      ++slice_;
      offset_ = 0;
    }
    return slice_ == slices_.size();
  }
  bool ok() const { return ok_; }

  bool copy(void* out, size_t size) {
    if (size > remaining_) return false;
    remaining_ -= size;
    auto* to = static_cast<std::byte*>(out);
    while (size > 0) {
      if (at_end()) return false;
      const size_t part = std::min(size, slices_[slice_].size() - offset_);
      std::memcpy(to, slices_[slice_].begin() + offset_, part);
      to += part;
      offset_ += part;
      size -= part;
    }
    return true;
  }

 private:
  std::vector<grpc::Slice> slices_;
  size_t slice_ = 0;
  size_t offset_ = 0;
  size_t remaining_ = 0;
  bool ok_ = false;
};

absl::Status FrameReader::take_frame(std::string_view record, std::vector<Frame>& frames) {
  const auto head = head_size(record, limits_);
  if (!head.ok()) return head.status();
  if (*head > record.size()) return absl::InvalidArgumentError("a frame ends inside its head");
  auto frame = decode_head(record.substr(0, *head), limits_);
  if (!frame.ok()) return frame.status();
  record.remove_prefix(*head);
  if (frame->payload_bytes() != record.size()) {
    return absl::InvalidArgumentError(absl::StrCat("payloads of ", frame->payload_bytes(),
                                                   " bytes in a record with ", record.size()));
  }
  if (absl::Status status = pool_.fill(*frame); !status.ok()) return status;
  for (Payload& payload : frame->payloads) {
    if (payload.size > 0) std::memcpy(payload.data, record.data(), payload.size);
    record.remove_prefix(payload.size);
  }
  frames.push_back(*std::move(frame));
  return absl::OkStatus();
}

absl::Status FrameReader::take_head(std::string_view record, std::vector<Frame>& frames) {
  auto frame = decode_head(record, limits_);
  if (!frame.ok()) return frame.status();
  if (absl::Status status = pool_.fill(*frame); !status.ok()) return status;
  missing_ = frame->payload_bytes();
  filling_ = missing_ > 0;
  if (!filling_) {
    frames.push_back(*std::move(frame));
    return absl::OkStatus();
  }
  partial_ = *std::move(frame);
  payload_ = offset_ = 0;
  return absl::OkStatus();
}

absl::Status FrameReader::take_chunk(Cursor& cursor, size_t size, std::vector<Frame>& frames) {
  if (size > missing_) {
    return absl::InvalidArgumentError("a frame has more bytes than its payloads");
  }
  missing_ -= size;
  for (size_t left = size; left > 0;) {
    while (offset_ == partial_.payloads[payload_].size) {
      ++payload_;
      offset_ = 0;
    }
    Payload& payload = partial_.payloads[payload_];
    const size_t part = std::min(left, payload.size - offset_);
    cursor.copy(payload.data + offset_, part);
    offset_ += part;
    left -= part;
  }
  if (missing_ == 0) {
    filling_ = false;
    frames.push_back(std::exchange(partial_, Frame()));
  }
  return absl::OkStatus();
}

absl::Status FrameReader::read(const grpc::ByteBuffer& message,
                               const std::function<absl::Status(std::string hello)>& on_hello,
                               std::vector<Frame>& frames) {
  Cursor cursor(message);
  if (!cursor.ok()) return absl::InvalidArgumentError("a message cannot be read");
  while (!cursor.at_end()) {
    uint8_t kind = 0;
    uint32_t size = 0, checksum = 0;
    if (!cursor.copy(&kind, 1) || !cursor.copy(&size, 4) || !cursor.copy(&checksum, 4) ||
        size > cursor.remaining()) {
      return absl::InvalidArgumentError("a record is truncated");
    }
    if (awaits_hello_ != (kind == kHello)) {
      return absl::InvalidArgumentError(
          awaits_hello_ ? absl::StrCat("a record of kind ", kind, " comes before the hello")
                        : "a hello is out of place");
    }
    if (kind == kHello && size > kMostHello) {
      return absl::InvalidArgumentError(
          absl::StrCat("a hello of ", size, " bytes exceeds ", kMostHello));
    }
    std::string content(kind == kChunk ? 0 : size, '\0');
    cursor.copy(content.data(), content.size());
    if (record_checksum(kind, size, content) != checksum) {
      return absl::DataLossError("a record was changed on its way: its checksum does not fit");
    }
    const bool in_head = !head_.empty();  // more of it must come
    if (filling_ != (kind == kChunk) || (in_head && kind != kHead && kind != kHeadPart)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a record of kind ", kind, " is out of place"));
    }
    absl::Status taken;
    switch (kind) {
      case kHello:
        awaits_hello_ = false;
        taken = on_hello(std::move(content));
        break;
      case kFrame:
        taken = take_frame(content, frames);
        break;
      case kHead:
        if (in_head) content.insert(0, std::exchange(head_, {}));
        taken = take_head(content, frames);
        break;
      case kHeadPart:
        if (content.size() > limits_.max_frame_bytes - head_.size()) {
          taken = absl::InvalidArgumentError(absl::StrCat(
              "a head of more than ", limits_.max_frame_bytes, " bytes, which a frame may have"));
        }
        head_ += content;
        break;
      case kChunk:
        taken = take_chunk(cursor, size, frames);
        break;
      default:
        taken = absl::InvalidArgumentError(absl::StrCat("a record of kind ", kind, " is unknown"));
    }
    if (!taken.ok()) return taken;
  }
  return absl::OkStatus();
}

}  // namespace weft::rpc_internal
