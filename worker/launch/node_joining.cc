#include "weft/worker/launch/node_joining.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"

namespace weft::launch {
namespace {

using Clock = std::chrono::steady_clock;

// The sum over all nodes.
constexpr uint64_t kMostRanks = 1 << 20;

class Joining {
 public:
  Joining(RendezvousStore& store, const NodeRecord& self, const NodeGroupOptions& options)
      : store_(store), self_(self), options_(options), records_(self.nodes) {}

  absl::StatusOr<std::vector<NodeRecord>> run(const std::function<bool()>& interrupted) {
    for (uint32_t node = 0; node < self_.nodes; ++node) missing_.push_back(node);
    const absl::Status met = meet(interrupted);
    if (met.ok()) return std::move(records_);
    // The others need not wait for their own timeout. If the store is gone, they learn that.
    const NodeFailure failure = {options_.node, kCouldNotLaunch, std::string(met.message())};
    if (!registered_) return met;
    (void)store_.compare_set(kJoinFailureKey, "", to_text(failure));
    if (is_expected()) (void)store_.compare_set(kFailureKey, "", to_text(failure));
    return met;
  }

 private:
  // A call that the store does not answer in time is made again.
  absl::Status meet(const std::function<bool()>& interrupted) {
    const Clock::time_point deadline = Clock::now() + options_.join_timeout;
    while (true) {
      const absl::StatusOr<bool> all = look();
      if (!all.ok() && !absl::IsDeadlineExceeded(all.status())) return all.status();
      if (all.ok() && *all) return absl::OkStatus();
      if (interrupted()) return absl::CancelledError("interrupted while it waited for other nodes");
      if (Clock::now() >= deadline) {
        WEFT_RETURN_IF_ERROR(all.status());
        WEFT_RETURN_IF_ERROR(look_for_missing());
        return absl::DeadlineExceededError(
            absl::StrCat("these nodes did not come in time: ", absl::StrJoin(missing_, ", ")));
      }
      std::this_thread::sleep_for(kLookAtNodes);
    }
  }

  // Whether node 0 has met this node just before, and so expects it in the running group.
  bool is_expected() const {
    const absl::StatusOr<std::optional<std::string>> text = store_.try_get(kNodesKey);
    if (!text.ok() || !text->has_value()) return false;
    const absl::StatusOr<std::vector<NodeRecord>> all = parse_node_records(**text);
    return all.ok() && options_.node < all->size() && (*all)[options_.node].token == self_.token;
  }

  // Returns whether all nodes are there.
  absl::StatusOr<bool> look() {
    const bool interval_over = Clock::now() >= next_heartbeat_;
    if (interval_over) {
      WEFT_RETURN_IF_ERROR(store_.add(heartbeats_key(options_.node), 1).status());
      next_heartbeat_ = Clock::now() + options_.interval;
    }
    if (!registered_) WEFT_RETURN_IF_ERROR(register_self());
    if (options_.node == 0) {
      WEFT_RETURN_IF_ERROR(look_for_missing());
      if (interval_over) WEFT_RETURN_IF_ERROR(look_for_lost());
    } else {
      WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.try_get(kNodesKey));
      if (text) {
        WEFT_ASSIGN_OR_RETURN(records_, parse_node_records(*text));
        WEFT_RETURN_IF_ERROR(check_number(0, records_.size()));
        WEFT_RETURN_IF_ERROR(accept_all());
        return true;
      }
    }
    // After node 0 has met all, failures of joining are those of launchers that do not belong here.
    WEFT_ASSIGN_OR_RETURN(const std::optional<NodeFailure> failure,
                          read_node_failure(store_, kJoinFailureKey, UINT32_MAX));
    if (failure) return absl::FailedPreconditionError(failure->text);
    if (options_.node != 0 || !missing_.empty()) return false;
    WEFT_RETURN_IF_ERROR(accept_all());
    std::vector<NodeRecord> shown = records_;
    for (NodeRecord& record : shown) record.public_keys.clear();
    WEFT_RETURN_IF_ERROR(store_.set(kNodesKey, to_text(shown)));
    return true;
  }

  absl::Status accept_all() {
    WEFT_RETURN_IF_ERROR(check_sum());
    return options_.on_all_met ? options_.on_all_met(records_) : absl::OkStatus();
  }

  absl::Status look_for_missing() {
    std::vector<uint32_t> still_missing;
    for (const uint32_t node : missing_) {
      WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.try_get(node_key(node)));
      if (!text) {
        still_missing.push_back(node);
        continue;
      }
      WEFT_ASSIGN_OR_RETURN(records_[node], parse_node_record(*text));
      WEFT_RETURN_IF_ERROR(check_record(node));
    }
    missing_ = std::move(still_missing);
    return absl::OkStatus();
  }

  // A launcher that has come may die while it waits for the others.
  absl::Status look_for_lost() {
    for (uint32_t node = 1; node < self_.nodes; ++node) {
      if (std::find(missing_.begin(), missing_.end(), node) != missing_.end()) continue;
      WEFT_ASSIGN_OR_RETURN(const bool lost, heartbeats_.look(store_, node, options_.lost_after));
      if (!lost) continue;
      return absl::UnavailableError(
          absl::StrCat("node ", node, " (", records_[node].host,
                       ") came and is lost: its launcher has not been heard of. Missing: ",
                       missing_.empty() ? "none" : absl::StrJoin(missing_, ", ")));
    }
    return absl::OkStatus();
  }

  absl::Status register_self() {
    WEFT_ASSIGN_OR_RETURN(const std::string held,
                          store_.compare_set(node_key(options_.node), "", to_text(self_)));
    WEFT_ASSIGN_OR_RETURN(const NodeRecord record, parse_node_record(held));
    if (record.token != self_.token) {
      return absl::AlreadyExistsError(absl::StrCat("two launchers are node ", options_.node,
                                                   ": one on ", record.host, ", one on ",
                                                   self_.host));
    }
    registered_ = true;
    return absl::OkStatus();
  }

  absl::Status check_record(uint32_t node) const {
    const NodeRecord& other = records_[node];
    WEFT_RETURN_IF_ERROR(check_number(node, other.nodes));
    const auto kind = [](const NodeRecord& record) {
      return record.public_keys.empty() ? "none" : "per-worker";
    };
    if (other.public_keys.empty() != self_.public_keys.empty()) {
      return different(node, "--certificates", kind(self_), kind(other));
    }
    if (other.run_id.empty() || self_.run_id.empty() || other.run_id == self_.run_id) {
      return absl::OkStatus();
    }
    return different(node, "run ids", self_.run_id, other.run_id);
  }

  absl::Status check_number(uint32_t node, size_t nodes) const {
    if (nodes == self_.nodes) return absl::OkStatus();
    return different(node, "numbers of nodes", absl::StrCat(self_.nodes), absl::StrCat(nodes));
  }

  absl::Status different(uint32_t node, const std::string& what, const std::string& ours,
                         const std::string& theirs) const {
    return absl::FailedPreconditionError(
        absl::StrCat("different ", what, ": node ", options_.node, " (", self_.host, ") has ", ours,
                     ", node ", node, " (", records_[node].host, ") has ", theirs));
  }

  absl::Status check_sum() const {
    uint64_t ranks = 0;
    for (const NodeRecord& record : records_) {
      for (const Role& role : record.roles) ranks += role.count;
    }
    if (ranks > 0 && ranks <= kMostRanks) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the group would have ", ranks, " ranks"));
  }

  RendezvousStore& store_;
  const NodeRecord& self_;
  const NodeGroupOptions& options_;
  std::vector<NodeRecord> records_;
  std::vector<uint32_t> missing_;
  bool registered_ = false;
  Clock::time_point next_heartbeat_{};
  NodeHeartbeats heartbeats_;
};

}  // namespace

std::string node_key(uint32_t node) { return absl::StrCat("weft/launch/node/", node); }
std::string heartbeats_key(uint32_t node) { return absl::StrCat("weft/launch/heartbeats/", node); }
std::string finished_key(uint32_t node) { return absl::StrCat("weft/launch/finished/", node); }

absl::StatusOr<std::optional<NodeFailure>> read_node_failure(RendezvousStore& store,
                                                             const char* key, uint32_t nodes) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text, store.try_get(key));
  if (!text) return std::nullopt;
  WEFT_ASSIGN_OR_RETURN(NodeFailure failure, parse_node_failure(*text, nodes));
  return failure;
}

absl::StatusOr<bool> NodeHeartbeats::look(RendezvousStore& store, uint32_t node,
                                          uint32_t lost_after) {
  WEFT_ASSIGN_OR_RETURN(const int64_t heartbeats, store.add(heartbeats_key(node), 0));
  Seen& seen = seen_[node];
  seen.missed = heartbeats == seen.heartbeats ? seen.missed + 1 : 0;
  seen.heartbeats = heartbeats;
  return seen.missed >= lost_after;
}

absl::StatusOr<std::vector<NodeRecord>> join_nodes(RendezvousStore& store, const NodeRecord& self,
                                                   const NodeGroupOptions& options,
                                                   const std::function<bool()>& interrupted) {
  return Joining(store, self, options).run(interrupted);
}

}  // namespace weft::launch
