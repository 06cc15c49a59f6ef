// Connects the ranks of one host: maps every rank's control block and opens a socket to every rank.
//
// Thread safety: unless said otherwise, all methods may be called from any thread.
// Lifetime: a rank's control block stays mapped here after that rank has died.
// Blocking: form() and hand(), until their deadline.
// Errors: DeadlineExceeded names the ranks that have not come. Unavailable names the rank that
// cannot be reached, and its host. InvalidArgument: a rank of another group or version answers.
// Others: those of shm/.
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
#include "weft/shm/sealed_memory.h"
#include "weft/sockets/local_socket.h"

namespace weft::comm_internal {

// Lets ranks leave notices for each other before they are connected (in the rendezvous store).
class Noticeboard {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  virtual ~Noticeboard() = default;
  virtual absl::Status post(int rank, const std::string& text) = 0;
  // Waits for the notice that this rank posts.
  virtual absl::StatusOr<std::string> read(int rank, TimePoint deadline) = 0;
};

class Mesh {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // All ranks of a group call this once, with the same size and noticeboard.
  static absl::StatusOr<std::unique_ptr<Mesh>> form(int rank, int size, Noticeboard& notices,
                                                    TimePoint deadline);

  int rank() const { return rank_; }
  int size() const { return size_; }
  ControlBlock& block(int rank) const { return *reinterpret_cast<ControlBlock*>(blocks_[rank]); }
  ControlBlock& mine() const { return block(rank_); }
  // The memory of `from` for messages between `from` and `to`.
  Channel& channel(int from, int to) const {
    return reinterpret_cast<Channel*>(blocks_[from] + sizeof(ControlBlock))[to];
  }

  // Sends a descriptor of memory to a rank, but not to this rank itself. One thread at a time.
  absl::Status hand(int rank, const std::string& text, int descriptor, TimePoint deadline);
  // Returns the next message that this rank has sent with hand(), if there is one. Does not wait.
  // One thread at a time.
  absl::StatusOr<std::optional<LocalSocket::Message>> handed_by(int rank);

  // Whether this rank has closed its end or died. False for this rank itself.
  bool gone(int rank) const;
  // Says why a rank will do nothing more: Unavailable, with its own reason if it has given up. OK
  // if it is alive and has not given up.
  absl::Status end_of(int rank) const;
  // Whether the rank is gone and has not given a reason.
  bool died(int rank) const;
  // Says why a receive from any rank cannot be completed; OK if it can. A rank that has died may
  // have been the sender that was meant, as with MPI's wildcard receives. So one death is enough.
  // Ranks that have left count only when all have left.
  absl::Status end_of_senders() const;
  // Reads the control block of `owner` where `owner` itself has mapped it. This is for ranks that
  // are threads of one process, so that ThreadSanitizer sees both sides of an access. Call it
  // before the ranks begin. `owner` must outlive this object.
  void share_mapping_of(const Mesh& owner) { blocks_[owner.rank_] = owner.blocks_[owner.rank_]; }
  // Closes all sockets, so that the other ranks see that this rank is gone.
  void leave();

 private:
  Mesh(int rank, int size)
      : rank_(rank), size_(size), memory_(size), blocks_(size), sockets_(size) {}
  void keep_block(int rank, SealedMemory memory);

  const int rank_;
  const int size_;
  std::vector<SealedMemory> memory_;                   // by rank
  std::vector<std::byte*> blocks_;                     // by rank: the address that is used
  std::vector<std::unique_ptr<LocalSocket>> sockets_;  // by rank; none to this one
};

}  // namespace weft::comm_internal
