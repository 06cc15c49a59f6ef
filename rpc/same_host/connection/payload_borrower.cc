#include "weft/rpc/same_host/connection/payload_borrower.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/same_host/connection/segment_message.h"

namespace weft::rpc_internal {

PayloadBorrower::Returns::Returns(std::shared_ptr<PairMemory> memory, PairMemory::End owner,
                                  WakeSlot there)
    : memory_(std::move(memory)), there_(std::move(there)), writer_(memory_->returns(owner)) {}

void PayloadBorrower::Returns::give_back(const Lending& lending) {
  absl::StatusOr<bool> wake;
  {
    MutexLock lock(mutex_);
    wake = writer_.push(lending);
  }
  if (!wake.ok()) {
    log_warning("a block cannot be given back: ", wake.status().message());
  } else if (*wake) {
    there_.signal();
  }
}

PayloadBorrower::PayloadBorrower(std::shared_ptr<BorrowedSegments> segments,
                                 std::shared_ptr<PairMemory> memory, PairMemory::End owner,
                                 WakeSlot there, BufferPool& pool, Clock& clock)
    : segments_(std::move(segments)),
      returns_(std::make_shared<Returns>(std::move(memory), owner, std::move(there))),
      pool_(pool),
      clock_(clock) {}

absl::StatusOr<Payload> PayloadBorrower::borrow(const Lending& lending, size_t size) {
  // The peer hands a segment over before it publishes the first descriptor.
  if (!known_.contains(lending.segment)) {
    if (absl::Status received = receive_segments(); !received.ok()) {
      decline(lending);
      return received;
    }
  }
  WEFT_ASSIGN_OR_RETURN(BorrowedSegments::Block block,
                        segments_->borrow(lending, size, returns_, clock_.now()));
  if (block.keep) {
    Payload payload = {block.data, size, std::move(block.owner)};
    payload.lent = true;
    return payload;
  }
  WEFT_ASSIGN_OR_RETURN(Payload copy, pool_.try_take(size));
  std::memcpy(copy.data, block.data, size);
  return copy;
}

absl::Status PayloadBorrower::retire(uint32_t segment) {
  // The peer may have handed it over and lent nothing of it.
  if (!known_.contains(segment)) WEFT_RETURN_IF_ERROR(receive_segments());
  if (known_.erase(segment) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", segment, " is dropped and was not handed over"));
  }
  return segments_->retire_segment(segment);
}

absl::Status PayloadBorrower::receive_segments() {
  bool reset = false;
  // It ends: each message names another segment, and there are at most kMostSegments.
  while (true) {
    absl::StatusOr<LocalSocket::Message> message = socket_->receive(LocalSocket::TimePoint::min());
    // If the peer has closed its socket without reading all, the kernel says so once, before it
    // gives what the peer has sent.
    if (absl::IsUnavailable(message.status()) && !std::exchange(reset, true)) continue;
    if (absl::IsDeadlineExceeded(message.status()) || absl::IsUnavailable(message.status())) {
      return absl::OkStatus();  // nothing more has come
    }
    if (!message.ok()) return message.status();
    WEFT_ASSIGN_OR_RETURN(const SegmentMessage segment, SegmentMessage::parse(message->bytes));
    if (message->descriptors.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat("segment ", segment.number, " came with ",
                                                     message->descriptors.size(), " descriptors"));
    }
    if (known_.contains(segment.number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", segment.number, " is handed over twice"));
    }
    // Before it is mapped: the kernel allocates all of its pages then.
    WEFT_RETURN_IF_ERROR(segments_->check_room(segment.number, segment.size));
    WEFT_ASSIGN_OR_RETURN(SealedMemory memory,
                          SealedMemory::adopt(std::move(message->descriptors[0]), segment.size));
    WEFT_RETURN_IF_ERROR(segments_->add_segment(segment.number, std::move(memory)));
    known_.insert(segment.number);
  }
}

}  // namespace weft::rpc_internal
