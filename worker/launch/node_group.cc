#include "weft/worker/launch/node_group.h"

#include <algorithm>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"

namespace weft::launch {

using Clock = std::chrono::steady_clock;

absl::StatusOr<std::unique_ptr<NodeGroup>> NodeGroup::join(RendezvousStore& store, NodeRecord self,
                                                           const NodeGroupOptions& options,
                                                           const Interrupted& interrupted) {
  WEFT_ASSIGN_OR_RETURN(std::vector<NodeRecord> records,
                        join_nodes(store, self, options, interrupted));
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
      finished_(records_.size()) {}

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
  return std::all_of(finished_.begin() + 1, finished_.end(),
                     [](const std::optional<int>& code) { return code.has_value(); });
}

int NodeGroup::exit_code() const {
  MutexLock lock(mutex_);
  if (failure_) return failure_->code;
  if (own_code_.value_or(0) != 0) return *own_code_;
  for (const std::optional<int>& code : finished_) {
    if (code.value_or(0) != 0) return *code;
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
    const Clock::time_point begin = Clock::now();
    absl::Status status = exchange();
    if (status.ok() && interval_over)
      status = store_.add(heartbeats_key(options_.node), 1).status();
    if (status.ok()) status = look_at_others(interval_over);
    if (status.ok()) unanswered = 0;
    if (!status.ok() && interval_over) {
      // Calls that time out take several intervals. But if this process was stopped meanwhile, that
      // time does not count.
      constexpr int64_t kMost = 3;
      const int64_t passed = (Clock::now() - begin) / options_.interval;
      unanswered += static_cast<uint32_t>(std::clamp<int64_t>(passed, 1, kMost));
      if (unanswered >= options_.lost_after) lose_store(status);
    }
    MutexLock lock(mutex_);
    const bool has_news = (own_failure_ && !failure_) || (own_code_ && !told_code_);
    if (store_lost_ || (stopping_ && (!has_news || !status.ok()))) break;
    if (has_news && status.ok()) continue;
    wake_.wait_until(mutex_,
                     Clock::now() + std::min<Clock::duration>(kLookAtNodes, options_.interval));
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
                          store_.compare_set(kFailureKey, "", to_text(*own_failure)));
    note_failure(parse_node_failure(held, place_.nodes));
  } else if (!failed) {
    const auto failure = read_node_failure(store_, kFailureKey, place_.nodes);
    if (absl::IsInvalidArgument(failure.status())) note_failure(failure.status());
    WEFT_RETURN_IF_ERROR(failure.status());
    if (*failure) set_failure(**failure);
  }
  if (!own_code) return absl::OkStatus();
  // Node 0 may end, with the store, as soon as it has read this.
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
      if (finished_[node]) continue;
    }
    WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                          store_.try_get(finished_key(node)));
    int code = kCouldNotLaunch;
    if (text) {
      if (!absl::SimpleAtoi(*text, &code)) code = kCouldNotLaunch;
      MutexLock lock(mutex_);
      finished_[node] = code;
      tell();
      continue;
    }
    if (!interval_over) continue;
    WEFT_ASSIGN_OR_RETURN(const bool lost, heartbeats_.look(store_, node, options_.lost_after));
    if (!lost) continue;
    MutexLock lock(mutex_);
    finished_[node] = code;
    if (!own_failure_) own_failure_ = {node, code, "lost: its launcher has not been heard of"};
    tell();
  }
  return absl::OkStatus();
}

void NodeGroup::note_failure(const absl::StatusOr<NodeFailure>& read) {
  if (read.ok()) return set_failure(*read);
  set_failure({options_.node, kCouldNotLaunch,
               absl::StrCat("the group's failure: ", read.status().message())});
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
