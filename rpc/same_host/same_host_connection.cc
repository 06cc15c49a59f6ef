#include "weft/rpc/same_host/same_host_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rpc_internal {
namespace {

// One visit reads about this much, so that the peers of a worker take turns.
constexpr size_t kMostPerVisit = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<WakePage>> WakePage::create() {
  absl::StatusOr<SealedMemory> memory = SealedMemory::create("weft-wake", kBytes);
  if (!memory.ok()) return memory.status();
  return std::shared_ptr<WakePage>(new WakePage(*std::move(memory)));
}

absl::StatusOr<std::shared_ptr<WakePage>> WakePage::adopt(FileDescriptor descriptor) {
  absl::StatusOr<SealedMemory> memory = SealedMemory::adopt(std::move(descriptor), kBytes);
  if (!memory.ok()) return memory.status();
  return std::shared_ptr<WakePage>(new WakePage(*std::move(memory)));
}

namespace {

PairMemory::End other(PairMemory::End end) {
  return end == PairMemory::kDialler ? PairMemory::kAcceptor : PairMemory::kDialler;
}

}  // namespace

SameHostConnection::SameHostConnection(Parts parts, BufferPool& pool, const TransportLimits& limits)
    : parts_(std::move(parts)),
      ring_reader_(parts_.memory.ring(other(parts_.end)),
                   parts_.memory.ring_data(other(parts_.end)), kCloseRecord),
      reader_(ring_reader_, pool, limits),
      ring_writer_(parts_.memory.ring(parts_.end), parts_.memory.ring_data(parts_.end)),
      writer_(ring_writer_) {}

bool SameHostConnection::send(FrameBatch frames) {
  std::vector<FramePtr> done;  // destroyed outside the lock
  MutexLock lock(mutex_);
  if (closing_ || !broken_.ok()) return false;
  for (FramePtr& frame : frames) writer_.push(std::move(frame));
  pump(done);
  return true;
}

void SameHostConnection::close() {
  std::vector<FramePtr> done;
  MutexLock lock(mutex_);
  if (closing_ || !broken_.ok()) return;
  closing_ = true;
  writer_.push_close();
  pump(done);
}

void SameHostConnection::abort(absl::Status reason) {
  MutexLock lock(mutex_);
  if (broken_.ok()) break_off(std::move(reason));
}

StreamsBytes SameHostConnection::streams_of(const Frame& frame) const {
  MutexLock lock(mutex_);
  return {writer_.is_small(frame) ? writer_.small_bytes() : writer_.large_bytes()};
}

void SameHostConnection::pump(std::vector<FramePtr>& done) {
  if (!broken_.ok()) return;
  const absl::StatusOr<bool> published = writer_.pump(done);
  if (!published.ok()) {
    break_off(published.status());
  } else if (*published) {
    parts_.there.signal();
  }
}

void SameHostConnection::break_off(absl::Status why) {
  broken_ = std::move(why);
  parts_.socket.shut_down();  // the far end sees it
  parts_.here.signal();       // visit() reports it
}

std::optional<absl::Status> SameHostConnection::broken() const {
  MutexLock lock(mutex_);
  if (broken_.ok()) return std::nullopt;
  return broken_;
}

void SameHostConnection::far_end_gone() {
  gone_.store(true, std::memory_order_release);
  parts_.here.signal();
  // It may have died between its exchange of `armed` and the wake-up. Then signal() finds the
  // reader not armed, and so do the signals of other peers, but the reader sleeps.
  parts_.here.page->bits().wake();
}

std::optional<absl::Status> SameHostConnection::visit(
    const std::function<void(std::vector<Frame>)>& deliver) {
  std::optional<absl::Status> ended = read_and_write(deliver);
  if (ended.has_value()) {
    // The user may keep the connection for long, but what it sent is free now.
    reader_.drop();
    std::vector<FramePtr> lost;  // destroyed outside the lock
    MutexLock lock(mutex_);
    closing_ = true;
    writer_.drop(lost);
  }
  return ended;
}

std::optional<absl::Status> SameHostConnection::read_and_write(
    const std::function<void(std::vector<Frame>)>& deliver) {
  if (auto why = broken()) return why;
  // Loaded before the ring is read: what a far end wrote before it went is read first.
  const bool gone = gone_.load(std::memory_order_acquire);
  std::vector<Frame> frames;
  const absl::StatusOr<RingFrameReader::Result> read = reader_.read(kMostPerVisit, frames);
  if (read.ok() && read->wake_writer) parts_.there.signal();
  if (!frames.empty()) deliver(std::move(frames));

  std::vector<FramePtr> done;
  MutexLock lock(mutex_);
  if (!broken_.ok()) return broken_;
  if (!read.ok()) {
    break_off(read.status());
    return broken_;
  }
  if (!writer_.idle()) pump(done);
  if (read->closed) {
    if (!closing_) {
      closing_ = true;
      writer_.push_close();
      pump(done);
    }
    // The far end takes a closed socket for the answer, in case CLOSE found no room.
    parts_.socket.shut_down();
    return absl::OkStatus();
  }
  if (read->more) {
    parts_.here.signal();
  } else if (gone) {
    parts_.socket.shut_down();
    if (closing_) return absl::OkStatus();
    closing_ = true;
    return absl::UnavailableError(absl::StrCat("process ", parts_.socket.peer_process(),
                                               " has closed the connection or ended"));
  }
  return broken_.ok() ? std::nullopt : std::optional<absl::Status>(broken_);
}

}  // namespace weft::rpc_internal
