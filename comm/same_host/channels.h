// Carries messages between this rank and the other ranks of its host. For each direction there is a
// ring of bytes in the sender's memory.
//
// A message goes to the first receive that was posted for its sender and tag. If there is none yet,
// the message is kept, up to kMostKept bytes from all ranks together. Beyond that the ring stays
// full and the sender waits. A message must have the length of its receive.
//
// Thread safety: none. The lock of CollectiveGroup guards it.
// Lifetime: the caller keeps the memory of a message valid until the message is done.
// Blocking: never. advance() does what can be done now.
// Errors: InvalidArgument (a message and its receive differ in length), Internal (a damaged ring).
// Neither can be recovered from.
// Protocol: docs/same_host_collectives.md, "Messages between two ranks".
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/comm/same_host/control_block.h"
#include "weft/comm/same_host/mesh.h"

namespace weft::comm_internal {

class CollectiveWork;

class Channels {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using WorkPtr = std::shared_ptr<CollectiveWork>;

  static constexpr int kAnyone = -1;
  static constexpr uint64_t kMostKept = uint64_t{256} << 20;

  struct Message {
    int peer = 0;  // kAnyone: a receive from any rank, whichever sends first
    int tag = 0;
    std::byte* data = nullptr;
    uint64_t size = 0;
    std::shared_ptr<const void> memory;  // keeps the data until the message is done
    WorkPtr work;                        // of this message; CollectiveGroup sets it
  };
  struct Done {
    WorkPtr work;
    int peer;  // the rank that sent or gets the message
  };

  explicit Channels(Mesh& mesh);

  // Both may complete the message before they return. If receive() fails, it forgets the message.
  void send(Message message);
  absl::Status receive(Message message);

  // Does what can be done now. Returns false if nothing could.
  absl::StatusOr<bool> advance();
  // The messages that are done, in the order in which they were completed. The caller removes them.
  std::deque<Done>& done() { return done_; }
  // Whether no message is under way. Messages that were kept for later receives do not count.
  bool idle() const { return receives_.empty() && sending_ == 0; }
  // One of the messages under way; null if idle() is true.
  WorkPtr under_way() const;

  // A counter of another rank whose change may let a message continue, and its last known value.
  struct Watch {
    const Counter* counter;
    uint32_t seen;
    bool moved() const { return counter->load() != seen; }
  };
  // Appends the counters that the messages under way wait for.
  void watch(std::vector<Watch>& all) const;

  // A message under way and its peer. `what` is for errors: "send of 5 bytes to rank 2 (tag 7)".
  struct Waiting {
    int peer;
    TimePoint deadline;
    std::string what;
  };
  std::vector<Waiting> waiting() const;
  // Forgets all messages. First it gives those that were under way to `then`.
  void clear(const std::function<void(WorkPtr)>& then);

 private:
  // Stands in front of each message in the ring.
  struct Header {
    uint64_t size;
    int32_t tag;
    uint32_t check;
  };
  struct Receive {
    Message message;
    int sender = kAnyone;  // the rank whose message has begun to come in; kAnyone: none yet
    bool begun() const { return sender != kAnyone; }
  };
  using Receives = std::list<Receive>;
  struct Outgoing {
    std::deque<Message> queue;
    uint64_t written = 0;  // bytes of the first message, without its header
    bool headed = false;   // the header of the first message is written
    uint32_t taken_seen = 0;
  };
  struct Incoming {
    bool headed = false;
    Header header = {};
    uint64_t read = 0;  // bytes of the message, without its header
    bool matched = false;
    uint32_t written_seen = 0;
    Receives::iterator receive;   // where the message goes, if matched
    std::vector<std::byte> kept;  // where it goes otherwise
  };
  struct Kept {
    int peer;
    int tag;
    std::vector<std::byte> bytes;
  };

  bool write_to(int peer);
  absl::StatusOr<bool> read_from(int peer);
  absl::StatusOr<bool> find_place(int peer);
  void end_message(int peer);
  absl::Status fits(const Message& receive, int peer, uint64_t size) const;

  Mesh& mesh_;
  std::vector<Outgoing> outgoing_;  // by rank
  std::vector<Incoming> incoming_;
  Receives receives_;        // in the order in which they were posted
  std::list<Kept> kept_;     // complete messages, in the order in which they came
  uint64_t kept_bytes_ = 0;  // also counts kept messages that are still coming in
  size_t sending_ = 0;
  std::deque<Done> done_;
};

}  // namespace weft::comm_internal
