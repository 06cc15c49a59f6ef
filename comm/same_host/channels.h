// Carries messages between two ranks of one host: a ring of bytes each way, in the sender's memory.
//
// A message goes to the first receive that was posted for its sender and tag; one that comes before
// its receive is kept, up to kMostKept bytes from all ranks together; beyond that the ring stays
// full and its sender waits. A message must be as long as its receive.
//
// Thread safety: none; the group's lock (CollectiveGroup).
// Lifetime: the memory of a message is the caller's until it is done.
// Blocking: none: advance() does what can be done now.
// Errors: InvalidArgument (a message of another length than its receive), Internal (a damaged
// ring); none of them can be recovered from. Protocol: docs/same_host_collectives.md, "Messages
// between two".
#pragma once

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

class Channels {
 public:
  static constexpr int kAnyone = -1;
  static constexpr uint64_t kMostKept = uint64_t{256} << 20;

  struct Message {
    int peer = 0;  // kAnyone: a receive from whoever comes first
    int tag = 0;
    std::byte* data = nullptr;
    uint64_t size = 0;
    std::function<void(int peer)> done;  // told who sent it, or got it
    std::shared_ptr<const void> memory;  // keeps the data until then
  };

  explicit Channels(Mesh& mesh);

  // Both may be done before they return.
  void send(Message message);
  absl::Status receive(Message message);

  // Does what can be done now; false if nothing could.
  absl::StatusOr<bool> advance();
  bool idle() const { return receives_.empty() && sending_ == 0; }

  // Counters of others whose move may let something go on, and what was seen of them.
  struct Watch {
    const Counter* counter;
    uint32_t seen;
    bool moved() const { return counter->load() != seen; }
  };
  void watch(std::vector<Watch>& all) const;

  // For whom something waits, as texts for an error: "send of 5 bytes to rank 2 (tag 7)".
  struct Waiting {
    int peer;
    std::string what;
  };
  std::vector<Waiting> waiting() const;
  // Gives up what waits.
  void clear();

 private:
  // What comes in front of each message in the ring.
  struct Header {
    uint64_t size;
    int32_t tag;
    uint32_t check;
  };
  struct Receive {
    Message message;
    int sender = kAnyone;  // of the message that is coming into it; kAnyone: none is yet
    bool begun() const { return sender != kAnyone; }
  };
  using Receives = std::list<Receive>;
  struct Outgoing {
    std::deque<Message> queue;
    uint64_t written = 0;  // of the first one
    bool headed = false;   // its header is written
    uint32_t taken_seen = 0;
  };
  struct Incoming {
    bool headed = false;
    Header header = {};
    uint64_t read = 0;  // of its bytes
    bool matched = false;
    uint32_t written_seen = 0;
    Receives::iterator receive;   // where it goes, if matched
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
  std::list<Kept> kept_;     // whole ones, in the order in which they came
  uint64_t kept_bytes_ = 0;  // with those that are coming
  size_t sending_ = 0;
};

}  // namespace weft::comm_internal
