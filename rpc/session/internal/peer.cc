#include "weft/rpc/session/internal/peer.h"

#include <algorithm>

#include "weft/base/faults/breakage.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMaxEarlyCancels = 1024;
constexpr size_t kMostClosed = 64;             // more than half of a longer queue are open calls
constexpr size_t kAckFrames = 256;             // acknowledge after this many frames at the latest
constexpr size_t kAckBytes = size_t{1} << 20;  // and after this many bytes at the latest

// Nested calls take no call credit, so they return none when they are taken.
bool counts_as_call(const FrameHeader& header) { return (header.flags & kFlagNested) == 0; }

bool counts_for_quiescence(const FrameHeader& header) {
  return header.kind == FrameKind::kCall || header.kind == FrameKind::kReply ||
         (header.kind == FrameKind::kPost &&
          header.function != static_cast<uint64_t>(Topic::kMembership));
}

uint64_t budget_us(TimePoint deadline, TimePoint now) {
  if (deadline == kNever) return 0;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
  return left > 0 ? static_cast<uint64_t>(left) : 1;
}

}  // namespace

bool PeerCore::has_credit(const Frame& frame) const {
  const uint64_t calls = charged_calls_ - returned_calls_;
  const uint64_t bytes = charged_bytes_ - returned_bytes_;
  if (counts_as_call(frame.header) && calls >= window_.calls) return false;
  // The peer may have taken a call that is still retained here, because an earlier frame has not
  // arrived. So retained bytes have a bound of their own.
  const uint64_t retained = session_.retained_call_bytes();
  if (bytes == 0) return retained <= 2 * window_.bytes;
  if (bytes + frame.cost() <= window_.bytes) return retained + frame.cost() <= 2 * window_.bytes;
  // The calls that fill the window may wait for this nested call, so nested calls have a window of
  // their own.
  if (counts_as_call(frame.header)) return false;
  return nested_bytes_ == 0 || nested_bytes_ + frame.cost() <= window_.bytes;
}

bool PeerCore::add_call(uint64_t call, Frame& frame, PendingCall&& pending, TimePoint now) {
  // Nested calls have a queue of their own, because calls in the other queue may wait for them.
  const bool nested = !counts_as_call(frame.header);
  std::deque<uint64_t>& queue = nested ? nested_queue_ : queue_;
  drop_closed_in_front(queue);
  const bool send_now = queue.empty() && lease_valid(now) && has_credit(frame);
  if (!send_now && !pending.waited_for) {
    if (queued_ >= window_.max_queued_calls ||
        queued_bytes_ + frame.cost() > window_.max_queued_bytes) {
      return false;
    }
  }
  if (pending.deadline != kNever) deadlines_.emplace(pending.deadline, call);
  PendingCall& open = pending_.emplace(call, std::move(pending)).first->second;
  if (send_now) {
    send_call(call, std::move(frame), now);
  } else {
    ++queued_;
    queued_bytes_ += frame.cost();
    open.unsent = std::make_unique<Frame>(std::move(frame));
    if (queue.size() >= 2 * queued_ + kMostClosed) drop_closed(queue);
    queue.push_back(call);
  }
  return true;
}

void PeerCore::send_call(uint64_t call, Frame frame, TimePoint now) {
  PendingCall& pending = pending_.at(call);
  pending.sent = !WEFT_BREAK(sent_call_counts_as_unsent);
  if (counts_as_call(frame.header)) {
    ++charged_calls_;
  } else {
    nested_bytes_ += pending.nested_bytes = frame.cost();
  }
  charged_bytes_ += frame.cost();
  frame.header.budget_us = budget_us(pending.deadline, now);
  post(std::move(frame));
}

bool PeerCore::lease_valid(TimePoint now) const {
  return now < valid_until_ || WEFT_BREAK(called_without_valid_lease);
}

void PeerCore::set_valid_until(TimePoint until, TimePoint now) {
  valid_until_ = until;
  release_queued(now);
}

void PeerCore::release_queued(TimePoint now) {
  for (std::deque<uint64_t>* queue : {&nested_queue_, &queue_}) {
    for (drop_closed_in_front(*queue); !queue->empty(); drop_closed_in_front(*queue)) {
      const uint64_t call = queue->front();
      std::unique_ptr<Frame>& unsent = pending_.at(call).unsent;
      if (!lease_valid(now) || !has_credit(*unsent)) break;
      const std::unique_ptr<Frame> frame = std::move(unsent);
      --queued_;
      queued_bytes_ -= frame->cost();
      queue->pop_front();
      send_call(call, std::move(*frame), now);
    }
  }
}

void PeerCore::drop_closed_in_front(std::deque<uint64_t>& queue) {
  while (!queue.empty() && !pending_.contains(queue.front())) queue.pop_front();
}

void PeerCore::drop_closed(std::deque<uint64_t>& queue) {
  std::erase_if(queue, [this](uint64_t call) { return !pending_.contains(call); });
}

std::optional<PendingCall> PeerCore::take_call(uint64_t call) {
  auto found = pending_.find(call);
  if (found == pending_.end()) return std::nullopt;
  std::optional<PendingCall> taken = std::move(found->second);
  if (taken->deadline != kNever) deadlines_.erase({taken->deadline, call});
  nested_bytes_ -= taken->nested_bytes;
  if (taken->unsent != nullptr) {
    --queued_;
    queued_bytes_ -= taken->unsent->cost();
    if (WEFT_BREAK(cancelled_call_leaves_queue)) post(*taken->unsent);
  }
  if (!WEFT_BREAK(answered_call_stays_open)) pending_.erase(found);
  return taken;
}

std::vector<std::pair<uint64_t, PendingCall>> PeerCore::take_late(TimePoint now) {
  std::vector<std::pair<uint64_t, PendingCall>> late;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t call = deadlines_.begin()->second;
    late.emplace_back(call, *take_call(call));
  }
  return late;
}

void PeerCore::note_reply(uint64_t call) {
  const auto found = pending_.find(call);
  // A peer may lie about a call that was never sent.
  if (found != pending_.end() && found->second.sent) found->second.answered = true;
}

std::vector<std::pair<uint64_t, PendingCall>> PeerCore::take_all_calls() {
  std::vector<uint64_t> calls;
  for (const auto& [call, pending] : pending_) {
    if (!pending.answered) calls.push_back(call);
  }
  std::sort(calls.begin(), calls.end());
  std::vector<std::pair<uint64_t, PendingCall>> all;
  all.reserve(calls.size());
  for (const uint64_t call : calls) {
    all.emplace_back(call, *take_call(call));
  }
  queue_.clear();
  nested_queue_.clear();
  return all;
}

std::vector<FramePtr> PeerCore::take_all_frames() {
  session_.retain_nothing();
  std::vector<FramePtr> all = session_.take_released();
  for (FramePtr& frame : take_outgoing()) all.push_back(std::move(frame));
  return all;
}

const PendingCall* PeerCore::oldest_call() const {
  const auto oldest =
      std::min_element(pending_.begin(), pending_.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
  return oldest == pending_.end() ? nullptr : &oldest->second;
}

const IncomingCall* PeerCore::oldest_incoming() const {
  const auto oldest =
      std::min_element(incoming_.begin(), incoming_.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
  return oldest == incoming_.end() ? nullptr : oldest->second.get();
}

TimePoint PeerCore::earliest_deadline() const {
  return deadlines_.empty() ? kNever : deadlines_.begin()->first;
}

void PeerCore::fill(FrameHeader& header) const {
  header.source = self_;
  header.destination = peer_;
  header.acknowledged = session_.acknowledged();
  header.credit_calls = taken_calls_;
  header.credit_bytes = taken_bytes_;
}

void PeerCore::stamp(FrameHeader& header) {
  fill(header);
  told_calls_ = taken_calls_;
  told_bytes_ = taken_bytes_;
  owed_frames_ = 0;
  owed_bytes_ = 0;
}

void PeerCore::post(Frame frame) {
  stamp(frame.header);
  if (counts_for_quiescence(frame.header)) ++counted_sent_;
  outgoing_.push_back(session_.number(std::move(frame)));
}

void PeerCore::cancel(uint64_t call) {
  Frame frame;
  frame.header.kind = FrameKind::kCancel;
  frame.header.call = call;
  post(std::move(frame));
}

void PeerCore::send_unnumbered(Frame frame) {
  stamp(frame.header);
  outgoing_.push_back(std::make_shared<const Frame>(std::move(frame)));
}

FramePtr PeerCore::answer(const FrameHeader& heartbeat, std::string body) const {
  Frame answer;
  answer.body = std::move(body);
  answer.header.kind = FrameKind::kHeartbeat;
  answer.header.flags = kFlagAnswer;
  answer.header.call = heartbeat.call;
  fill(answer.header);
  return std::make_shared<const Frame>(std::move(answer));
}

void PeerCore::send_ack() {
  Frame ack;
  ack.header.kind = FrameKind::kAck;
  send_unnumbered(std::move(ack));
}

FrameBatch PeerCore::resend() {
  FrameBatch waiting = take_outgoing();
  if (WEFT_BREAK(not_resent)) return waiting;
  if (!WEFT_BREAK(credit_lost_with_connection)) {
    send_ack();  // repeats the credit, because the frame that told it may be lost
  }
  FrameBatch frames = take_outgoing();
  frames.insert(frames.end(), session_.unacknowledged().begin(), session_.unacknowledged().end());
  // Numbered frames are among the unacknowledged ones. The other waiting frames follow them.
  for (FramePtr& frame : waiting) {
    if (frame->header.sequence == 0) frames.push_back(std::move(frame));
  }
  return frames;
}

bool PeerCore::on_header(const FrameHeader& header, TimePoint now) {
  if (!session_.on_acknowledged(header.acknowledged)) return false;
  if (header.credit_calls > charged_calls_ || header.credit_bytes > charged_bytes_) return false;
  returned_calls_ = std::max(returned_calls_, header.credit_calls);
  returned_bytes_ = std::max(returned_bytes_, header.credit_bytes);
  release_queued(now);
  return true;
}

bool PeerCore::accept(const Frame& frame) {
  ++owed_frames_;
  owed_bytes_ += frame.cost();
  if (!session_.accept(frame.header.sequence)) return false;
  if (counts_for_quiescence(frame.header)) ++counted_received_;
  if (frame.header.kind == FrameKind::kCall) {
    const auto cancel =
        std::find_if(early_cancels_.begin(), early_cancels_.end(),
                     [&](const auto& each) { return each.second == frame.header.call; });
    arriving_[frame.header.call] = cancel != early_cancels_.end();
    if (cancel != early_cancels_.end()) early_cancels_.erase(cancel);
  }
  // A call has a lower number than its cancel. Once all frames up to the cancel have arrived, the
  // call has come too, or there was none.
  while (!early_cancels_.empty() && early_cancels_.begin()->first <= session_.acknowledged()) {
    early_cancels_.erase(early_cancels_.begin());
  }
  return true;
}

void PeerCore::call_taken(const FrameHeader& header, size_t cost) {
  if (WEFT_BREAK(credit_not_returned)) return;
  if (counts_as_call(header)) ++taken_calls_;
  taken_bytes_ += cost;
}

bool PeerCore::ack_due() const {
  if (!ack_owed()) return false;
  return owed_frames_ >= kAckFrames || owed_bytes_ >= kAckBytes ||
         (taken_calls_ - told_calls_) * 4 >= window_.calls ||
         (taken_bytes_ - told_bytes_) * 4 >= window_.bytes;
}

void PeerCore::note_cancel(const FrameHeader& cancel) {
  if (auto call = arriving_.find(cancel.call); call != arriving_.end()) {
    call->second = true;
    return;
  }
  // All frames up to the cancel have arrived, so the call has come and is answered.
  if (cancel.sequence <= session_.acknowledged()) return;
  if (early_cancels_.size() == kMaxEarlyCancels) early_cancels_.erase(early_cancels_.begin());
  early_cancels_.emplace(cancel.sequence, cancel.call);
}

bool PeerCore::admitted(uint64_t call) {
  auto found = arriving_.find(call);
  if (found == arriving_.end()) return false;
  const bool cancelled = found->second;
  arriving_.erase(found);
  return cancelled;
}

}  // namespace weft::rpc_internal
