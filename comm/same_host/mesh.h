// The ranks of one host, connected: every rank's control block mapped, and a socket to every rank.
//
// Thread safety: form() is called once; the rest may be called from any thread.
// Lifetime: a rank's control block stays mapped here after that rank has ended.
// Blocking: form(), until its deadline.
// Errors: DeadlineExceeded (names the ranks that have not come), Unavailable (names the rank that
// cannot be reached, and its host), InvalidArgument (a rank of another group or version answers),
// those of shm/.
// Protocol: docs/same_host_collectives.md, "Forming a group".
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/comm/same_host/control_block.h"
#include "weft/shm/local_socket.h"
#include "weft/shm/sealed_memory.h"

namespace weft::comm_internal {

// Where ranks leave a word for each other before they are connected: the rendezvous store.
class Noticeboard {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  virtual ~Noticeboard() = default;
  virtual absl::Status post(int rank, const std::string& text) = 0;
  // Waits for what that rank has posted.
  virtual absl::StatusOr<std::string> read(int rank, TimePoint deadline) = 0;
};

class Mesh {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // All ranks of a group call this, with the same size and noticeboard.
  static absl::StatusOr<std::unique_ptr<Mesh>> form(int rank, int size, Noticeboard& notices,
                                                    TimePoint deadline);

  int rank() const { return rank_; }
  int size() const { return size_; }
  ControlBlock& block(int rank) const { return *reinterpret_cast<ControlBlock*>(blocks_[rank]); }
  ControlBlock& mine() const { return block(rank_); }
  // What `from` has laid out for messages between it and `to`.
  Channel& channel(int from, int to) const {
    return reinterpret_cast<Channel*>(blocks_[from] + sizeof(ControlBlock))[to];
  }

  // Sends memory to a rank; nothing to itself. One thread at a time.
  absl::Status hand(int rank, const std::string& text, int descriptor, TimePoint deadline);
  // What it has sent, if it has; does not wait. One thread at a time.
  absl::StatusOr<std::optional<LocalSocket::Message>> handed_by(int rank);

  // Whether this rank has closed its end or died. False for this rank itself.
  bool gone(int rank) const;
  // Why nothing more will come of a rank: Unavailable, with its own words if it has given up; OK as
  // long as something may.
  absl::Status end_of(int rank) const;
  // Whether it has gone without a word.
  bool died(int rank) const;
  // Reads that rank's control block where it has mapped it itself. For ranks that are threads of
  // one process, before they begin: ThreadSanitizer then sees both sides of an access. `owner`
  // outlives this.
  void share_mapping_of(const Mesh& owner) { blocks_[owner.rank_] = owner.blocks_[owner.rank_]; }
  // Closes all sockets: the others see this rank gone.
  void leave();

 private:
  Mesh(int rank, int size)
      : rank_(rank), size_(size), memory_(size), blocks_(size), sockets_(size) {}
  void keep_block(int rank, SealedMemory memory);

  const int rank_;
  const int size_;
  std::vector<SealedMemory> memory_;                   // by rank
  std::vector<std::byte*> blocks_;                     // by rank: where it is used
  std::vector<std::unique_ptr<LocalSocket>> sockets_;  // by rank; none to this one
};

}  // namespace weft::comm_internal
