// Holds what one worker knows of another: the session, the calls in both directions, and credit.
//
// It is a pure core without lock, clock or connection.
//
// Credit bounds the calls that wait in the callee's queue.
//
// * Each call is charged with its cost until the callee takes it off its queue, to run it or to
//   park it (parking.h). The callee reports this in cumulative counters. Every frame carries them.
// * A nested call, made inside a handler, costs bytes but no call credit.
// * Nested calls without an answer may fill a byte window of their own. The calls that fill the
//   other window may be waiting for them.
// * A call that alone exceeds the byte window is sent if no other call is charged.
//
// Thread safety: none; the lock of the peer's link (peer_link.h) guards it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/rpc/session/internal/session.h"

namespace weft::rpc_internal {

class IncomingCall;

// The room that a post is for. FrameHeader::function carries it.
enum class Topic : uint8_t { kMembership = 1, kRRef = 2, kAutograd = 3 };
inline constexpr size_t kTopics = 4;

struct CreditWindow {
  uint64_t calls = 4096;
  // The bytes of calls that the peer has not taken. Nested calls have a window of the same size for
  // themselves. Calls that are not acknowledged may have twice as many bytes.
  uint64_t bytes = uint64_t{256} << 20;
  size_t max_queued_calls = 65536;
  size_t max_queued_bytes = size_t{1} << 30;
  size_t max_result_bytes = size_t{64} << 20;  // of large results, retained for resending
};

using ReplyHandler = absl::AnyInvocable<void(absl::StatusOr<Frame>)>;

struct PendingCall {
  ReplyHandler on_reply;
  std::string_view function;  // its name, for messages
  TimePoint deadline = kNever;
  Nanoseconds allowed{0};  // the time from the call to its deadline, for messages
  bool sent = false;
  bool answered = false;  // its reply has come, and earlier frames of the batch are handled first
  // A thread waits for the reply, so the call may enter the queue even if the queue is full.
  bool waited_for = false;
  size_t nested_bytes = 0;                  // its cost, if it was sent and is nested
  std::unique_ptr<Frame> unsent = nullptr;  // the call, while it waits for credit or for a lease
};

class PeerCore {
 public:
  PeerCore(WorkerId self, WorkerId peer, const CreditWindow& window)
      : self_(self), peer_(peer), window_(window), session_(window.max_result_bytes) {}

  // --- calls to the peer
  // Takes the call. False: the local queue is full, and nothing was taken.
  bool add_call(uint64_t call, Frame& frame, PendingCall&& pending, TimePoint now);
  // Removes a call that is answered, cancelled or late, also from the queue. Nullopt: it was
  // removed before.
  std::optional<PendingCall> take_call(uint64_t call);
  // The reply has come. The call stays, because its deadline still holds, but take_all_calls()
  // leaves it: its caller gets the reply.
  void note_reply(uint64_t call);
  // Calls that begin at `until` or later wait here, unsent, for the next `set_valid_until`. The
  // peer may be about to declare this worker dead. kNever: there is no lease, and calls are sent.
  void set_valid_until(TimePoint until, TimePoint now);
  std::vector<std::pair<uint64_t, PendingCall>> take_late(TimePoint now);
  std::vector<std::pair<uint64_t, PendingCall>> take_all_calls();
  TimePoint earliest_deadline() const;

  // --- frames to the peer
  void post(Frame frame);
  void send_unnumbered(Frame frame);
  // Returns the answer to this heartbeat. It may be lost although other frames arrive. So its
  // acknowledgement and credit do not count as told to the peer.
  FramePtr answer(const FrameHeader& heartbeat, std::string body) const;
  // Tells the peer that no caller waits any more for a call that was sent.
  void cancel(uint64_t call);
  // Returns the frames to put on a connection now, in order.
  FrameBatch take_outgoing() { return std::exchange(outgoing_, {}); }
  // For a new connection: returns all frames that the peer may not have. They include those of
  // take_outgoing.
  FrameBatch resend();

  // --- frames from the peer
  // Takes acknowledgement and credit, and sends queued calls. False: the header acknowledges frames
  // that were never sent, or returns credit that was never charged.
  bool on_header(const FrameHeader& header, TimePoint now);
  // False: a duplicate.
  bool accept(const Frame& frame);
  // A call of the peer, with this header and cost, has left this worker's queue.
  void call_taken(const FrameHeader& header, size_t cost);
  // True: so much acknowledgement or credit is owed to the peer that it must not wait for other
  // traffic.
  bool ack_due() const;
  bool ack_owed() const { return owed_frames_ > 0 || taken_bytes_ != told_bytes_; }
  void send_ack();

  // --- calls from the peer
  absl::flat_hash_map<uint64_t, std::shared_ptr<IncomingCall>>& incoming() { return incoming_; }
  size_t running_calls() const { return incoming_.size(); }
  const IncomingCall* oldest_incoming() const;  // null if there is none
  // Takes a cancel of a call that is not in `incoming`. If it has overtaken its call, it is kept
  // (1,024 at most). If the call is answered already, it is dropped.
  void note_cancel(const FrameHeader& cancel);
  // An accepted call is in `incoming` now. True: it was cancelled before.
  bool admitted(uint64_t call);
  size_t early_cancels() const { return early_cancels_.size(); }

  // The total of frames that count for quiescence: calls, replies, and posts except membership's.
  uint64_t counted_sent() const { return counted_sent_; }
  uint64_t counted_received() const { return counted_received_; }

  size_t pending_calls() const { return pending_.size(); }
  const PendingCall* oldest_call() const;  // null if there is none
  size_t queued_calls() const { return queued_; }
  const SessionCore& session() const { return session_; }
  std::vector<FramePtr> take_released() { return session_.take_released(); }
  // The peer is gone, and nothing is sent to it any more. Drops all frames to it that are retained
  // or outgoing. Returns them, so that the caller can destroy them outside its lock.
  std::vector<FramePtr> take_all_frames();

 private:
  bool has_credit(const Frame& frame) const;
  bool lease_valid(TimePoint now) const;
  void send_call(uint64_t call, Frame frame, TimePoint now);
  void release_queued(TimePoint now);
  // Removes calls that are not open any more from the front, or wherever they are.
  void drop_closed_in_front(std::deque<uint64_t>& queue);
  void drop_closed(std::deque<uint64_t>& queue);
  void fill(FrameHeader& header) const;
  void stamp(FrameHeader& header);  // fills it, and counts its contents as told to the peer

  const WorkerId self_;
  const WorkerId peer_;
  const CreditWindow window_;
  SessionCore session_;
  FrameBatch outgoing_;
  absl::flat_hash_map<uint64_t, PendingCall> pending_;
  absl::btree_set<std::pair<TimePoint, uint64_t>> deadlines_;
  // Calls with PendingCall::unsent, in their order, and some that are not open any more.
  std::deque<uint64_t> queue_;
  std::deque<uint64_t> nested_queue_;  // is sent before queue_
  size_t queued_ = 0;                  // open calls in both queues
  size_t queued_bytes_ = 0;
  TimePoint valid_until_ = kNever;
  size_t nested_bytes_ = 0;  // cost of nested calls that were sent and are not answered
  uint64_t charged_calls_ = 0, charged_bytes_ = 0;    // cumulative
  uint64_t returned_calls_ = 0, returned_bytes_ = 0;  // as the peer has reported
  uint64_t taken_calls_ = 0, taken_bytes_ = 0;        // of calls that left this worker's queue
  uint64_t told_calls_ = 0, told_bytes_ = 0;          // the part of these that the peer was told
  uint64_t counted_sent_ = 0, counted_received_ = 0;
  size_t owed_frames_ = 0, owed_bytes_ = 0;  // of frames that arrived since the last stamp
  absl::flat_hash_map<uint64_t, std::shared_ptr<IncomingCall>> incoming_;
  absl::flat_hash_map<uint64_t, bool> arriving_;  // accepted, not yet admitted; true: cancelled
  // Calls whose cancel came first, by the cancel's sequence.
  std::map<uint64_t, uint64_t> early_cancels_;
};

}  // namespace weft::rpc_internal
