#include "weft/worker/launch/node_group.h"

#include <algorithm>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"

namespace weft::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kNodes[] = "weft/launch/nodes";
constexpr char kFailure[] = "weft/launch/failure";           // of a group that runs
constexpr char kJoinFailure[] = "weft/launch/join_failure";  // of one that forms
// How often a launcher looks for others that join, or for a failure.
constexpr std::chrono::milliseconds kLook(100);
// The sum over all nodes.
constexpr uint64_t kMostRanks = 1 << 20;
constexpr int kCouldNotLaunch = 1;

std::string node_key(uint32_t node) { return absl::StrCat("weft/launch/node/", node); }
std::string heartbeats_key(uint32_t node) { return absl::StrCat("weft/launch/heartbeats/", node); }
std::string finished_key(uint32_t node) { return absl::StrCat("weft/launch/finished/", node); }

absl::StatusOr<std::optional<NodeFailure>> read_failure(RendezvousStore& store, const char* key,
                                                        uint32_t nodes) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text, store.try_get(key));
  if (!text) return std::nullopt;
  WEFT_ASSIGN_OR_RETURN(NodeFailure failure, parse_node_failure(*text, nodes));
  return failure;
}

// Node 0 collects the records of all nodes, and gives them to the others.
class Joining {
 public:
  Joining(RendezvousStore& store, const NodeRecord& self, const NodeGroupOptions& options)
      : store_(store), self_(self), options_(options), records_(self.nodes) {}

  absl::StatusOr<std::vector<NodeRecord>> run(const NodeGroup::Interrupted& interrupted) {
    for (uint32_t node = 0; node < self_.nodes; ++node) missing_.push_back(node);
    absl::Status met = meet(interrupted);
    if (met.ok()) met = check_sum();
    if (met.ok()) return std::move(records_);
    // The others need not wait for their own timeout. If the store is gone, they learn that.
    const NodeFailure failure = {options_.node, kCouldNotLaunch, std::string(met.message())};
    if (!registered_) return met;
    (void)store_.compare_set(kJoinFailure, "", to_text(failure));
    if (is_expected()) (void)store_.compare_set(kFailure, "", to_text(failure));
    return met;
  }

 private:
  // A call that the store does not answer in time is made again.
  absl::Status meet(const NodeGroup::Interrupted& interrupted) {
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
      std::this_thread::sleep_for(kLook);
    }
  }

  // Whether node 0 has met this node just before, and so expects it in the running group.
  bool is_expected() const {
    const absl::StatusOr<std::optional<std::string>> text = store_.try_get(kNodes);
    if (!text.ok() || !text->has_value()) return false;
    const absl::StatusOr<std::vector<NodeRecord>> all = parse_node_records(**text);
    return all.ok() && options_.node < all->size() && (*all)[options_.node].token == self_.token;
  }

  // Returns whether all nodes are there.
  absl::StatusOr<bool> look() {
    // The others count intervals without a heartbeat as soon as they have met all nodes.
    if (Clock::now() >= next_heartbeat_) {
      WEFT_RETURN_IF_ERROR(store_.add(heartbeats_key(options_.node), 1).status());
      next_heartbeat_ = Clock::now() + options_.interval;
    }
    if (!registered_) WEFT_RETURN_IF_ERROR(register_self());
    if (options_.node == 0) {
      WEFT_RETURN_IF_ERROR(look_for_missing());
    } else {
      WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.try_get(kNodes));
      if (text) {
        WEFT_ASSIGN_OR_RETURN(records_, parse_node_records(*text));
        WEFT_RETURN_IF_ERROR(check_number(0, records_.size()));
        return true;
      }
    }
    // After node 0 has met all, failures of joining are those of launchers that do not belong here.
    WEFT_ASSIGN_OR_RETURN(const std::optional<NodeFailure> failure,
                          read_failure(store_, kJoinFailure, UINT32_MAX));
    if (failure) return absl::FailedPreconditionError(failure->text);
    if (options_.node != 0 || !missing_.empty()) return false;
    WEFT_RETURN_IF_ERROR(store_.set(kNodes, to_text(records_)));
    return true;
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
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeGroup>> NodeGroup::join(RendezvousStore& store, NodeRecord self,
                                                           const NodeGroupOptions& options,
                                                           const Interrupted& interrupted) {
  WEFT_ASSIGN_OR_RETURN(std::vector<NodeRecord> records,
                        Joining(store, self, options).run(interrupted));
  FileDescriptor changed(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!changed.valid()) return absl::ResourceExhaustedError("no descriptor for an eventfd");
  std::unique_ptr<NodeGroup> group(
      new NodeGroup(store, std::move(records), options, std::move(changed)));
  WEFT_ASSIGN_OR_RETURN(group->thread_,
                        start_thread("the other nodes", [group = group.get()] { group->run(); }));
  return group;
}

NodeGroup::NodeGroup(RendezvousStore& store, std::vector<NodeRecord> records,
                     const NodeGroupOptions& options, FileDescriptor changed)
    : store_(store),
      records_(std::move(records)),
      options_(options),
      place_(place_of_node(records_, options.node)),
      changed_(std::move(changed)),
      nodes_(records_.size()) {}

std::string NodeGroup::run_id() const {
  for (const NodeRecord& record : records_) {
    if (!record.run_id.empty()) return record.run_id;
  }
  return "";
}

NodeGroup::~NodeGroup() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NodeGroup::fail(int code, const std::string& text) {
  {
    MutexLock lock(mutex_);
    if (own_failure_ || failure_) return;
    own_failure_ = {options_.node, code, text};
  }
  wake_.notify_all();
}

std::optional<NodeFailure> NodeGroup::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

void NodeGroup::finish(int code) {
  {
    MutexLock lock(mutex_);
    own_code_ = code;
  }
  wake_.notify_all();
}

bool NodeGroup::may_leave() const {
  MutexLock lock(mutex_);
  if (store_lost_) return true;
  if (!told_code_) return false;
  if (options_.node != 0) return true;
  return std::all_of(nodes_.begin() + 1, nodes_.end(),
                     [](const Node& node) { return node.finished.has_value(); });
}

int NodeGroup::exit_code() const {
  MutexLock lock(mutex_);
  if (failure_) return failure_->code;
  if (own_code_.value_or(0) != 0) return *own_code_;
  for (const Node& node : nodes_) {
    if (node.finished.value_or(0) != 0) return *node.finished;
  }
  return 0;
}

// Talks with the store. If that fails, the launcher of node 0, which hosts it, is taken for lost
// after as many intervals as any other.
void NodeGroup::run() {
  Clock::time_point next_interval = Clock::now();
  uint32_t unanswered = 0;
  while (true) {
    const bool interval_over = Clock::now() >= next_interval;
    if (interval_over) next_interval = Clock::now() + options_.interval;
    absl::Status status = exchange();
    if (status.ok() && interval_over)
      status = store_.add(heartbeats_key(options_.node), 1).status();
    if (status.ok()) status = look_at_others(interval_over);
    if (status.ok()) unanswered = 0;
    if (!status.ok() && interval_over && ++unanswered >= options_.lost_after) {
      lose_store(status);
    }
    MutexLock lock(mutex_);
    const bool has_news = (own_failure_ && !failure_) || (own_code_ && !told_code_);
    if (store_lost_ || (stopping_ && (!has_news || !status.ok()))) break;
    if (has_news && status.ok()) continue;
    wake_.wait_until(mutex_, Clock::now() + std::min<Clock::duration>(kLook, options_.interval));
  }
  tell();
}

// After its own end this node needs no store any more, and node 0 may have ended.
void NodeGroup::lose_store(const absl::Status& why) {
  bool finished = false;
  {
    MutexLock lock(mutex_);
    finished = own_code_.has_value();
    store_lost_ = true;
  }
  if (!finished) set_failure({0, kCouldNotLaunch, absl::StrCat("lost: ", why.message())});
}

// Writes what this node has to say, and reads whether the group has failed.
absl::Status NodeGroup::exchange() {
  std::optional<NodeFailure> own_failure;
  std::optional<int> own_code;
  bool failed = false;
  {
    MutexLock lock(mutex_);
    own_failure = own_failure_;
    if (!told_code_) own_code = own_code_;
    failed = failure_.has_value();
  }
  if (!failed && own_failure) {
    WEFT_ASSIGN_OR_RETURN(const std::string held,
                          store_.compare_set(kFailure, "", to_text(*own_failure)));
    WEFT_ASSIGN_OR_RETURN(const NodeFailure first, parse_node_failure(held, place_.nodes));
    set_failure(first);
  } else if (!failed) {
    const auto failure = read_failure(store_, kFailure, place_.nodes);
    if (absl::IsInvalidArgument(failure.status())) {
      set_failure({options_.node, kCouldNotLaunch,
                   absl::StrCat("the group's failure: ", failure.status().message())});
    }
    WEFT_RETURN_IF_ERROR(failure.status());
    if (*failure) set_failure(**failure);
  }
  if (!own_code) return absl::OkStatus();
  // Not `set`, which is not answered: node 0 may end, with the store, as soon as it has read this.
  WEFT_RETURN_IF_ERROR(
      store_.compare_set(finished_key(options_.node), "", absl::StrCat(*own_code)).status());
  {
    MutexLock lock(mutex_);
    told_code_ = true;
  }
  tell();
  return absl::OkStatus();
}

// On node 0: reads which nodes have finished, and once in an interval which ones still live.
absl::Status NodeGroup::look_at_others(bool interval_over) {
  if (options_.node != 0) return absl::OkStatus();
  for (uint32_t node = 1; node < place_.nodes; ++node) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return absl::OkStatus();
      if (nodes_[node].finished) continue;
    }
    WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                          store_.try_get(finished_key(node)));
    int code = kCouldNotLaunch;
    if (text) {
      if (!absl::SimpleAtoi(*text, &code)) code = kCouldNotLaunch;
      MutexLock lock(mutex_);
      nodes_[node].finished = code;
      tell();
      continue;
    }
    if (!interval_over) continue;
    WEFT_ASSIGN_OR_RETURN(const int64_t heartbeats, store_.add(heartbeats_key(node), 0));
    MutexLock lock(mutex_);
    Node& seen = nodes_[node];
    seen.missed = heartbeats == seen.heartbeats ? seen.missed + 1 : 0;
    seen.heartbeats = heartbeats;
    if (seen.missed < options_.lost_after) continue;
    seen.finished = code;
    if (!own_failure_) own_failure_ = {node, code, "lost: its launcher has not been heard of"};
    tell();
  }
  return absl::OkStatus();
}

void NodeGroup::set_failure(const NodeFailure& failure) {
  {
    MutexLock lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  tell();
}

void NodeGroup::tell() const {
  const uint64_t one = 1;
  (void)!write(changed_.get(), &one, sizeof(one));
}

}  // namespace weft::launch
