#include "weft/rpc/same_host/connection/ring_frames.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/rpc/transport/frame_codec.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kOpenBytes = 16;
constexpr size_t kPieceHeader = 8;
constexpr size_t kRetireBytes = 8;
constexpr size_t kLendingBytes = 16;

template <class T>
void put_word(std::span<std::byte> to, size_t offset, T value) {
  std::memcpy(to.data() + offset, &value, sizeof(value));
}

template <class T>
T word_at(std::string_view from, size_t offset) {
  T value;
  std::memcpy(&value, from.data() + offset, sizeof(value));
  return value;
}

}  // namespace

// ---- writing

bool RingFrameWriter::is_small(const Frame& frame, size_t ring_bytes) {
  const size_t limit = largest_in_ring(ring_bytes);
  const size_t head = head_bytes(frame);
  if (head > limit) return false;
  size_t left = limit - head;
  for (const Payload& payload : frame.payloads) {  // views of one memory: the sum has no bound
    if (payload.size > left) return false;
    left -= payload.size;
  }
  return true;
}

bool RingFrameWriter::lent_fits(const Frame& frame, size_t least_lent, size_t ring_bytes) {
  const size_t limit = largest_in_ring(ring_bytes);
  size_t used = head_bytes(frame) + frame.payloads.size() * kLendingBytes;
  for (const Payload& payload : frame.payloads) {
    if (payload.size < least_lent) used += payload.size;
  }
  return used <= limit;
}

void RingFrameWriter::push(FramePtr frame, Lendings lendings) {
  if (!lendings.empty() || is_small(*frame, ring_.size())) {
    small_bytes_.taken += frame->cost();
    small_.push_back({std::move(frame), std::move(lendings)});
  } else {
    large_bytes_.taken += frame->cost();
    large_.push_back(std::move(frame));
  }
}

Lendings RingFrameWriter::take_unread() {
  const absl::StatusOr<uint64_t> read = ring_.read_position();
  Lendings unread;
  for (const Published& each : published_) {
    if (read.ok() && each.end > *read) unread.push_back(each.lending);
  }
  published_.clear();
  return unread;
}

absl::StatusOr<bool> RingFrameWriter::pump(std::vector<FramePtr>& done) {
  bool published = false;
  while (!idle()) {
    bool room = true;
    while (room && !retired_.empty()) {
      WEFT_ASSIGN_OR_RETURN(room, write_retired());
    }
    while (room && !small_.empty() && !large_turn()) {
      WEFT_ASSIGN_OR_RETURN(room, write_small(done));
    }
    // One piece, then small frames again. They may have come while nothing fitted.
    if (room && (!streams_.empty() || !large_.empty())) {
      WEFT_ASSIGN_OR_RETURN(room, write_piece(done));
      if (room) continue;
    }
    if (room && close_ && !closed_) {
      WEFT_ASSIGN_OR_RETURN(const auto memory, ring_.reserve(kCloseRecord, 0));
      room = closed_ = memory.has_value();
    }
    published = ring_.commit() || published;
    if (room) continue;
    WEFT_ASSIGN_OR_RETURN(room, ring_.request_space());
    if (!room) break;
  }
  return ring_.commit() || published;
}

absl::StatusOr<bool> RingFrameWriter::write_retired() {
  WEFT_ASSIGN_OR_RETURN(const auto memory, ring_.reserve(kRetireRecord, kRetireBytes));
  if (!memory.has_value()) return false;
  put_word(*memory, 0, retired_.front());
  put_word(*memory, 4, uint32_t{0});
  retired_.pop_front();
  return true;
}

// Whether a large frame has waited for as many small ones as the ring holds.
bool RingFrameWriter::large_turn() const {
  return since_piece_ >= 4 * ring_.largest() && (!streams_.empty() || !large_.empty());
}

absl::StatusOr<bool> RingFrameWriter::write_small(std::vector<FramePtr>& done) {
  Small& small = small_.front();
  const Frame& frame = *small.frame;
  const bool lent = !small.lendings.empty();
  const auto in_ring = [&](size_t i) { return !lent || small.lendings[i].generation == 0; };
  size_t size = head_bytes(frame) + small.lendings.size() * kLendingBytes;
  for (size_t i = 0; i < frame.payloads.size(); ++i) {
    if (in_ring(i)) size += frame.payloads[i].size;
  }
  WEFT_ASSIGN_OR_RETURN(const auto memory, ring_.reserve(lent ? kLentRecord : kFrameRecord, size));
  if (!memory.has_value()) return false;
  write_head(frame, reinterpret_cast<char*>(memory->data()));
  size_t to = head_bytes(frame);
  for (const Lending& lending : small.lendings) {
    put_word(*memory, to, lending.segment);
    put_word(*memory, to + 4, lending.generation);
    put_word(*memory, to + 8, lending.offset);
    to += kLendingBytes;
    if (lending.generation != 0) published_.push_back({ring_.end(), lending});
  }
  for (size_t i = 0; i < frame.payloads.size(); ++i) {
    const Payload& payload = frame.payloads[i];
    if (!in_ring(i) || payload.size == 0) continue;
    std::memcpy(memory->data() + to, payload.data, payload.size);
    to += payload.size;
  }
  while (!published_.empty() && published_.front().end <= ring_.freed()) published_.pop_front();
  small_bytes_.written += frame.cost();
  since_piece_ += size;
  done.push_back(std::move(small.frame));
  small_.pop_front();
  return true;
}

absl::StatusOr<bool> RingFrameWriter::write_piece(std::vector<FramePtr>& done) {
  while (streams_.size() < kMostStreams && !large_.empty()) {
    Stream stream;
    stream.number = next_stream_++;
    stream.frame = std::move(large_.front());
    large_.pop_front();
    stream.head = encode_head(*stream.frame);
    stream.left = stream.head.size() + stream.frame->payload_bytes();
    streams_.push_back(std::move(stream));
  }
  Stream& stream = streams_.front();
  if (!stream.opened) {
    WEFT_ASSIGN_OR_RETURN(const auto memory, ring_.reserve(kOpenRecord, kOpenBytes));
    if (!memory.has_value()) return false;
    put_word(*memory, 0, stream.number);
    put_word(*memory, 4, static_cast<uint32_t>(stream.head.size()));
    put_word(*memory, 8, static_cast<uint64_t>(stream.frame->payload_bytes()));
    stream.opened = true;
  }
  const size_t size = std::min(stream.left, ring_.largest() - kPieceHeader);
  WEFT_ASSIGN_OR_RETURN(const auto memory, ring_.reserve(kPieceRecord, kPieceHeader + size));
  if (!memory.has_value()) return false;
  put_word(*memory, 0, stream.number);
  put_word(*memory, 4, uint32_t{0});
  copy_out(stream, memory->subspan(kPieceHeader));
  since_piece_ = 0;
  // Each piece counts at once: a large frame that moves must not look like one that hangs.
  large_bytes_.written += size;
  if (stream.left == 0) {
    large_bytes_.written -= stream.head.size() + stream.frame->payload_bytes();
    large_bytes_.written += stream.frame->cost();
    done.push_back(std::move(stream.frame));
    streams_.pop_front();
  } else if (streams_.size() > 1) {
    std::rotate(streams_.begin(), streams_.begin() + 1, streams_.end());
  }
  return true;
}

void RingFrameWriter::drop(std::vector<FramePtr>& done) {
  constexpr uint64_t kNeverRead = std::numeric_limits<uint64_t>::max();
  for (Small& small : small_) {
    for (const Lending& lending : small.lendings) {
      if (lending.generation != 0) published_.push_back({kNeverRead, lending});
    }
    done.push_back(std::move(small.frame));
  }
  for (Stream& stream : streams_) done.push_back(std::move(stream.frame));
  std::move(large_.begin(), large_.end(), std::back_inserter(done));
  small_.clear();
  large_.clear();
  streams_.clear();
}

void RingFrameWriter::copy_out(Stream& stream, std::span<std::byte> to) {
  stream.left -= to.size();
  while (!to.empty()) {
    const std::vector<Payload>& payloads = stream.frame->payloads;
    const std::byte* from = stream.part == 0
                                ? reinterpret_cast<const std::byte*>(stream.head.data())
                                : payloads[stream.part - 1].data;
    const size_t whole = stream.part == 0 ? stream.head.size() : payloads[stream.part - 1].size;
    const size_t size = std::min(to.size(), whole - stream.offset);
    if (size > 0) std::memcpy(to.data(), from + stream.offset, size);
    to = to.subspan(size);
    stream.offset += size;
    if (stream.offset == whole) {
      ++stream.part;
      stream.offset = 0;
    }
  }
}

// ---- reading

absl::StatusOr<RingFrameReader::Result> RingFrameReader::read(size_t most_bytes,
                                                              std::vector<Frame>& frames) {
  Result result;
  const absl::Status taken = take_all(most_bytes, frames, result);
  result.wake_writer = ring_.release() || result.wake_writer;
  if (!taken.ok()) return taken;
  result.closed = closed_;
  return result;
}

absl::Status RingFrameReader::take_all(size_t most_bytes, std::vector<Frame>& frames,
                                       Result& result) {
  size_t bytes = 0;
  while (!closed_) {
    WEFT_ASSIGN_OR_RETURN(const auto record, ring_.next());
    if (!record.has_value()) break;
    const absl::Status taken = take(*record, frames);
    // At once: after a violation in a later record, the ring does not say any more that this one
    // was read, and the writer would take the blocks back while they are in use here.
    if (record->kind == kLentRecord) result.wake_writer = ring_.release() || result.wake_writer;
    WEFT_RETURN_IF_ERROR(taken);
    bytes += record->content.size();
    if (bytes >= most_bytes) {
      result.more = true;
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status RingFrameReader::take(const RingRecord& record, std::vector<Frame>& frames) {
  const std::string_view content(reinterpret_cast<const char*>(record.content.data()),
                                 record.content.size());
  switch (record.kind) {
    case kFrameRecord:
      return take_frame(content, frames);
    case kOpenRecord:
      return take_open(content);
    case kPieceRecord:
      return take_piece(content, frames);
    case kLentRecord:
      return take_lent(content, frames);
    case kRetireRecord:
      return take_retired(content);
    case kCloseRecord:
      return take_close(content);
    default:
      return absl::InvalidArgumentError(absl::StrCat("a record of kind ", record.kind));
  }
}

absl::Status RingFrameReader::take_frame(std::string_view content, std::vector<Frame>& frames) {
  WEFT_ASSIGN_OR_RETURN(const size_t head, head_size(content, limits_));
  if (head > content.size()) return absl::InvalidArgumentError("a frame ends inside its head");
  WEFT_ASSIGN_OR_RETURN(Frame frame, decode_head(content.substr(0, head), limits_));
  content.remove_prefix(head);
  if (frame.payload_bytes() != content.size()) {
    return absl::InvalidArgumentError(absl::StrCat("payloads of ", frame.payload_bytes(),
                                                   " bytes in a record with ", content.size()));
  }
  WEFT_RETURN_IF_ERROR(pool_.fill(frame));
  for (const Payload& payload : frame.payloads) {
    if (payload.size > 0) std::memcpy(payload.data, content.data(), payload.size);
    content.remove_prefix(payload.size);
  }
  frames.push_back(std::move(frame));
  return absl::OkStatus();
}

absl::Status RingFrameReader::take_lent(std::string_view content, std::vector<Frame>& frames) {
  if (lent_ == nullptr) return absl::InvalidArgumentError("a frame with lent payloads");
  WEFT_ASSIGN_OR_RETURN(const size_t head, head_size(content, limits_));
  if (head > content.size()) return absl::InvalidArgumentError("a frame ends inside its head");
  WEFT_ASSIGN_OR_RETURN(Frame frame, decode_head(content.substr(0, head), limits_));
  content.remove_prefix(head);
  if (content.size() / kLendingBytes < frame.payloads.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a frame with ", frame.payloads.size(),
                                                   " payloads and ", content.size(),
                                                   " bytes for their lendings"));
  }
  std::string_view bytes = content.substr(frame.payloads.size() * kLendingBytes);
  absl::Status status;
  for (size_t i = 0; i < frame.payloads.size(); ++i) {
    Payload& payload = frame.payloads[i];
    const std::string_view from = content.substr(i * kLendingBytes, kLendingBytes);
    const Lending lending = {word_at<uint32_t>(from, 0), word_at<uint32_t>(from, 4),
                             word_at<uint64_t>(from, 8)};
    if (lending.generation == 0) {
      if (status.ok()) status = take_bytes(bytes, payload);
      continue;
    }
    // After an error, all further blocks go back. Otherwise their owner would wait for them.
    if (!status.ok()) {
      lent_->decline(lending);
      continue;
    }
    absl::StatusOr<Payload> borrowed = lent_->borrow(lending, payload.size);
    status = borrowed.status();
    if (borrowed.ok()) payload = *std::move(borrowed);
  }
  WEFT_RETURN_IF_ERROR(status);
  if (!bytes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.size(), " bytes follow a frame with lent payloads"));
  }
  frames.push_back(std::move(frame));
  return absl::OkStatus();
}

absl::Status RingFrameReader::take_bytes(std::string_view& bytes, Payload& payload) {
  const size_t size = payload.size;
  if (size > bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload of ", size, " bytes of which ", bytes.size(), " are there"));
  }
  WEFT_ASSIGN_OR_RETURN(payload, pool_.try_take(size));
  if (size > 0) std::memcpy(payload.data, bytes.data(), size);
  bytes.remove_prefix(size);
  return absl::OkStatus();
}

absl::Status RingFrameReader::take_retired(std::string_view content) {
  if (lent_ == nullptr || content.size() != kRetireBytes || word_at<uint32_t>(content, 4) != 0) {
    return absl::InvalidArgumentError("a damaged record about a dropped segment");
  }
  return lent_->retire(word_at<uint32_t>(content, 0));
}

absl::Status RingFrameReader::take_open(std::string_view content) {
  if (content.size() != kOpenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a large frame begins with ", content.size(), " bytes"));
  }
  Stream stream;
  const auto number = word_at<uint32_t>(content, 0);
  stream.head_bytes = word_at<uint32_t>(content, 4);
  stream.payload_bytes = word_at<uint64_t>(content, 8);
  if (stream.head_bytes < kFixedHeaderBytes || stream.head_bytes > limits_.max_frame_bytes ||
      stream.payload_bytes > limits_.max_frame_bytes - stream.head_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame with a head of ", stream.head_bytes, " bytes and payloads of ",
        stream.payload_bytes, " is outside of the limit of ", limits_.max_frame_bytes));
  }
  if (streams_.size() == kMostStreams) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMostStreams, " large frames"));
  }
  if (!streams_.emplace(number, std::move(stream)).second) {
    return absl::InvalidArgumentError(absl::StrCat("large frame ", number, " begins twice"));
  }
  return absl::OkStatus();
}

absl::Status RingFrameReader::take_close(std::string_view content) {
  if (!content.empty() || !streams_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a close with ", content.size(), " bytes while ",
                                                   streams_.size(),
                                                   " large frames are unfinished"));
  }
  closed_ = true;
  return absl::OkStatus();
}

absl::Status RingFrameReader::take_piece(std::string_view content, std::vector<Frame>& frames) {
  if (content.size() <= kPieceHeader || word_at<uint32_t>(content, 4) != 0) {
    return absl::InvalidArgumentError("a damaged piece of a large frame");
  }
  const auto number = word_at<uint32_t>(content, 0);
  const auto found = streams_.find(number);
  if (found == streams_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of large frame ", number, ", which has not begun"));
  }
  content.remove_prefix(kPieceHeader);
  Stream& stream = found->second;
  if (stream.head.size() < stream.head_bytes) {
    // The head grows with what has come, so that memory follows bytes and not claims.
    const size_t part = std::min(content.size(), stream.head_bytes - stream.head.size());
    stream.head.append(content.substr(0, part));
    content.remove_prefix(part);
    if (stream.head.size() < stream.head_bytes) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(stream.frame, decode_head(stream.head, limits_));
    stream.left = stream.frame.payload_bytes();
    if (stream.left != stream.payload_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("large frame ", number, " has payloads of ",
                                                     stream.left, " bytes and announced ",
                                                     stream.payload_bytes));
    }
    WEFT_RETURN_IF_ERROR(pool_.fill(stream.frame));
  }
  if (content.size() > stream.left) {
    return absl::InvalidArgumentError(
        absl::StrCat("large frame ", number, " has more bytes than its payloads"));
  }
  stream.left -= content.size();
  while (!content.empty()) {
    const Payload& payload = stream.frame.payloads[stream.payload];
    const size_t part = std::min(content.size(), payload.size - stream.offset);
    if (part > 0) std::memcpy(payload.data + stream.offset, content.data(), part);
    content.remove_prefix(part);
    stream.offset += part;
    if (stream.offset == payload.size) {
      ++stream.payload;
      stream.offset = 0;
    }
  }
  if (stream.left == 0) {
    frames.push_back(std::move(stream.frame));
    streams_.erase(found);
  }
  return absl::OkStatus();
}

}  // namespace weft::rpc_internal
