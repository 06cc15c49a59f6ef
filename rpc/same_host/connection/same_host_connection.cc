#include "weft/rpc/same_host/connection/same_host_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/shm/byte_ring.h"

namespace weft::rpc_internal {
namespace {

// One visit reads about this much, so that the peers of a worker take turns.
constexpr size_t kMostPerVisit = size_t{1} << 20;

PairMemory::End other(PairMemory::End end) {
  return end == PairMemory::kDialler ? PairMemory::kAcceptor : PairMemory::kDialler;
}

}  // namespace

SameHostConnection::SameHostConnection(Parts parts, BufferPool& pool, const TransportLimits& limits)
    : parts_(std::move(parts)),
      ring_reader_(parts_.memory->ring(other(parts_.end)),
                   parts_.memory->ring_data(other(parts_.end)), kLastRingRecord),
      reader_(ring_reader_, pool, limits, parts_.borrower.get()),
      ring_writer_(parts_.memory->ring(parts_.end), parts_.memory->ring_data(parts_.end)),
      writer_(ring_writer_) {
  parts_.borrower->use(parts_.socket);
}

bool SameHostConnection::send(FrameBatch frames) {
  const size_t ring_bytes = parts_.memory->ring_bytes();
  absl::InlinedVector<Lendings, 2> lent(frames.size());
  bool tried = false;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (PayloadLender::worth_while(*frames[i], ring_bytes) && is_open()) {
      lent[i] = parts_.lender->lend(*frames[i], parts_.socket);
      tried = true;
    }
  }
  std::vector<FramePtr> done;  // destroyed outside the lock
  bool taken = false;
  {
    MutexLock lock(mutex_);
    if (taken = !closing_ && broken_.ok(); taken) {
      if (tried) push_dropped();
      for (size_t i = 0; i < frames.size(); ++i) {
        writer_.push(std::move(frames[i]), std::move(lent[i]));
      }
      pump(done);
    }
  }
  if (!taken) {
    for (const Lendings& lendings : lent) parts_.lender->take_back(lendings);
  }
  return taken;
}

std::optional<Payload> SameHostConnection::copy_payload(const std::byte* data, size_t size) {
  if (size <= largest_in_ring(parts_.memory->ring_bytes()) || !is_open()) return std::nullopt;
  return parts_.lender->copy(data, size);
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
  const bool small = RingFrameWriter::is_small(frame, parts_.memory->ring_bytes());
  MutexLock lock(mutex_);
  // A large frame is written as a small one if its payloads are lent.
  if (small) return {writer_.small_bytes()};
  return {writer_.small_bytes(), writer_.large_bytes()};
}

void SameHostConnection::settle() {
  Lendings unread;
  {
    MutexLock lock(mutex_);
    unread = writer_.take_unread();
  }
  parts_.lender->settle(unread);
}

void SameHostConnection::tell_dropped() {
  parts_.lender->find_dropped();
  std::vector<FramePtr> done;
  MutexLock lock(mutex_);
  if (closing_ || !broken_.ok()) return;
  push_dropped();
  pump(done);
}

void SameHostConnection::push_dropped() {
  for (const uint32_t segment : parts_.lender->take_dropped()) writer_.push_retired(segment);
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
  parts_.here.signal();  // visit() reports it
}

bool SameHostConnection::is_open() const {
  MutexLock lock(mutex_);
  return !closing_ && broken_.ok();
}

bool SameHostConnection::is_broken() const {
  MutexLock lock(mutex_);
  return !broken_.ok();
}

void SameHostConnection::far_end_gone() {
  gone_.store(true, std::memory_order_release);
  parts_.here.signal();
  // It may have died between its exchange of `armed` and the wake-up. Then signal() finds the
  // reader not armed, and so do the signals of other peers, but the reader sleeps.
  parts_.here.page->bits().wake();
}

bool SameHostConnection::read_reply(uint64_t call, async_internal::FutureCore& result,
                                    AcceptReply accept) {
  return parts_.reading != nullptr &&
         parts_.reading->read_reply(parts_.peer.id, call, result, accept);
}

std::optional<absl::Status> SameHostConnection::visit(Deliver deliver) {
  std::vector<Frame> frames;
  const Found found = read(frames);
  if (!frames.empty()) deliver(std::move(frames));
  return act_on(found);
}

SameHostConnection::Found SameHostConnection::read(std::vector<Frame>& frames) {
  if (absl::Status violation = parts_.lender->violation(); !violation.ok()) abort(violation);
  if (is_broken()) return {};
  // Loaded before the ring is read: what a far end wrote before it went is read first.
  const bool gone = gone_.load(std::memory_order_acquire);
  const absl::StatusOr<RingFrameReader::Result> read = reader_.read(kMostPerVisit, frames);
  if (!read.ok()) return {.violation = read.status()};
  if (read->wake_writer) parts_.there.signal();
  if (read->more) parts_.here.signal();
  return {.closed = read->closed, .gone = gone && !read->more};
}

bool SameHostConnection::must_act_on(const Found& found) const {
  if (!found.violation.ok() || found.closed || found.gone) return true;
  MutexLock lock(mutex_);
  return !broken_.ok() || !writer_.idle();
}

std::optional<absl::Status> SameHostConnection::act_on(const Found& found) {
  std::optional<absl::Status> ended = write(found);
  if (ended.has_value()) {
    // The ring is not read any more. From now on the far end may take back what is unread.
    parts_.socket.shut_down_sending();
    // The user may keep the connection for long, but what it sent is free now.
    reader_.drop();
    parts_.borrower->end();
    std::vector<FramePtr> lost;  // destroyed outside the lock
    MutexLock lock(mutex_);
    closing_ = true;
    writer_.drop(lost);
  }
  return ended;
}

std::optional<absl::Status> SameHostConnection::write(const Found& found) {
  std::vector<FramePtr> done;
  MutexLock lock(mutex_);
  if (broken_.ok() && !found.violation.ok()) broken_ = found.violation;
  if (!broken_.ok()) return broken_;
  if (!writer_.idle()) pump(done);
  if (found.closed) {
    if (!closing_) {
      closing_ = true;
      writer_.push_close();
      pump(done);
    }
    // The far end takes a socket that is shut down for the answer, in case CLOSE found no room.
    return absl::OkStatus();
  }
  if (found.gone) {
    if (std::exchange(closing_, true)) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("process ", parts_.socket.peer_process(),
                                               " has closed the connection or ended"));
  }
  return broken_.ok() ? std::nullopt : std::optional<absl::Status>(broken_);
}

}  // namespace weft::rpc_internal
