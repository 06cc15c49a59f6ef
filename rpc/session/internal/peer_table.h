// Holds the workers that an agent knows.
//
// These are members of its group, incarnations that are gone, and unknown incarnations for which
// posts wait.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the LinkEnvironment must outlive the table and its links.
// Bounds: the table remembers the last 1,024 incarnations that are gone. At most 4,096 posts wait
// for one unknown incarnation.
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/rpc/session/internal/peer_link.h"

namespace weft::rpc_internal {

class PeerTable {
 public:
  explicit PeerTable(LinkEnvironment& environment) : environment_(environment) {}

  // Sets the members at the start. All of them have their names.
  void set_members(std::vector<WorkerInfo> members) ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds a member, at first without a name. Posts that waited for it go before all others.
  void add(WorkerInfo member) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: it has a name already, is gone, or is not known.
  bool name(WorkerId member) ABSL_LOCKS_EXCLUDED(mutex_);

  PeerLinkPtr find(WorkerId worker) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<PeerLinkPtr> all() const ABSL_LOCKS_EXCLUDED(mutex_);  // by id
  // Returns the newest incarnation with this name, dead or not. NotFound: the error lists names.
  absl::StatusOr<WorkerId> resolve(std::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the newest known incarnation of each member, dead ones too, by id.
  std::vector<WorkerInfo> members() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The link of this incarnation is closed for good. The table drops incarnations that a later one
  // has replaced, and the oldest ones above the bound.
  void ended(WorkerId incarnation) ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps a post until its receiver is known, and returns null. ResourceExhausted: too many posts
  // wait for it. If the receiver became known meanwhile, returns its link and does not move `post`.
  absl::StatusOr<PeerLinkPtr> keep(WorkerId unknown, Frame& post) ABSL_LOCKS_EXCLUDED(mutex_);
  void drop_posts_to(WorkerId unknown) ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_unknown() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    PeerLinkPtr link;
    // False for a joiner that has not met all members yet; resolve() does not find it.
    bool named = false;
  };

  const Entry& entry_of(const WorkerInfo& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_.at(member.id.bits());
  }
  void drop_superseded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LinkEnvironment& environment_;
  mutable Mutex mutex_;
  std::vector<WorkerInfo> members_ ABSL_GUARDED_BY(mutex_);               // by id
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by WorkerId bits
  std::deque<WorkerId> ended_ ABSL_GUARDED_BY(mutex_);                    // gone, oldest first
  absl::flat_hash_map<uint64_t, std::vector<Frame>> unknown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc_internal
