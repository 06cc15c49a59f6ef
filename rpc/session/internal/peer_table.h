// The workers that an agent knows: members of its group, ended incarnations, and incarnations that
// others speak of but that nobody has introduced yet.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the LinkEnvironment outlives the table and its links.
// Bounds: the last 1024 ended incarnations are remembered; 4096 posts wait for one unknown
// incarnation.
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

  // All named; for the start.
  void set_members(std::vector<WorkerInfo> members) ABSL_LOCKS_EXCLUDED(mutex_);
  // One more, without a name at first. Posts that waited for it are its first ones.
  void add(WorkerInfo member) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: it has a name already, is gone, or is not known.
  bool name(WorkerId member) ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_name(WorkerId member) const ABSL_LOCKS_EXCLUDED(mutex_);

  PeerLinkPtr find(WorkerId worker) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<PeerLinkPtr> all() const ABSL_LOCKS_EXCLUDED(mutex_);  // by id
  // The newest incarnation of this name, dead or not; NotFound lists the names.
  absl::StatusOr<WorkerId> resolve(std::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The newest known incarnation of each, dead ones too, by id.
  std::vector<WorkerInfo> members() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The link of this incarnation has ended: the table forgets what is superseded, or too much.
  void ended(WorkerId incarnation) ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps a post until its receiver is known. ResourceExhausted: too many wait for it. If the
  // receiver became known meanwhile, gives its link and leaves the frame alone.
  absl::StatusOr<PeerLinkPtr> keep(WorkerId unknown, Frame& post) ABSL_LOCKS_EXCLUDED(mutex_);
  void drop_posts_to(WorkerId unknown) ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_unknown() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    PeerLinkPtr link;
    // A joiner that has not met all members has no name: resolve() passes it over.
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
  std::deque<WorkerId> ended_ ABSL_GUARDED_BY(mutex_);                    // oldest first
  absl::flat_hash_map<uint64_t, std::vector<Frame>> unknown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc_internal
