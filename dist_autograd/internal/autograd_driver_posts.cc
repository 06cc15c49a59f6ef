// The part of AutogradDriver that exchanges messages with other workers, and that runs without the
// driver's lock.
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/autograd_driver.h"

namespace weft::dist_autograd_internal {

using namespace backward;  // NOLINT: the actions, in a file that carries them out

namespace {

// A message for which nobody waits is deferred this long, so that it can be piggybacked on another.
constexpr std::chrono::milliseconds kPiggybackWait{5};

}  // namespace

// ---- messages to other workers

void AutogradDriver::hand_out(Send send, Outbox& outbox) {
  Piggybacked& piggybacked = piggybacked_[send.to];
  if (!may_piggyback(send.message)) {
    set_budget(send);
    outbox.batches.push_back({send.to, std::move(send.message), std::exchange(piggybacked, {})});
    return;
  }
  piggybacked.push_back(std::move(send.message));
  if (piggyback_timer_) return;
  // Until the timer has fired, this worker counts as busy, so that the group is not quiescent. This
  // holds even if the deferred messages were piggybacked before.
  agent_.hold_work();
  piggyback_timer_ = call_at(clock_.now() + kPiggybackWait,
                             [](AutogradDriver& driver) { driver.on_piggybacked_due(); });
}

// For each worker, the last deferred message carries the others.
void AutogradDriver::send_piggybacked(Outbox& outbox) {
  for (auto& [to, piggybacked] : std::exchange(piggybacked_, {})) {
    if (piggybacked.empty()) continue;
    AutogradMessage last = std::move(piggybacked.back());
    piggybacked.pop_back();
    outbox.batches.push_back({to, std::move(last), std::move(piggybacked)});
  }
}

void AutogradDriver::on_piggybacked_due() {
  Outbox outbox;
  {
    MutexLock lock(mutex_);
    if (!piggyback_timer_) return;  // stop() came first and has released the work
    piggyback_timer_.reset();
    send_piggybacked(outbox);
  }
  deliver(std::move(outbox), On::kAnyThread);
  agent_.release_work();
}

void AutogradDriver::post(MessageBatch batch) {
  const PassId* about = pass_of(batch.message);
  const std::optional<PassId> pass = about == nullptr ? std::nullopt : std::optional(*about);
  absl::StatusOr<Frame> frame = to_frame(std::move(batch.message), batch.piggybacked);
  if (frame.ok()) {
    if (absl::Status size = agent_.check_size(*frame); !size.ok()) frame = std::move(size);
  }
  if (frame.ok()) {
    // The result is not needed: if the receiver is dead, the gone listener tells the core.
    agent_.post(batch.to, rpc_internal::Topic::kAutograd, *std::move(frame));
    return;
  }
  // The frame could not be made. The piggybacked messages go alone, and the pass fails.
  for (AutogradMessage& each : batch.piggybacked) {
    post({batch.to, std::move(each), {}});
  }
  if (pass) fail_pass(*pass, std::move(frame).status());
}

void AutogradDriver::deliver(Outbox outbox, On thread) {
  for (MessageBatch& batch : outbox.batches) post(std::move(batch));
  for (auto& [promise, outcome] : outbox.ended) {
    if (outcome.status.ok()) {
      promise.set_value();
    } else {
      promise.set_error(describe(outcome));
    }
  }
  if (thread == On::kAnyThread && !outbox.dropped.empty())
    drop_on_executor(std::move(outbox.dropped));
  if (!outbox.kept.empty()) executor_.schedule([kept = std::move(outbox.kept)] {});
}

// ---- destruction of graphs and gradients

void AutogradDriver::begin_work() {
  agent_.hold_work();
  MutexLock lock(tombstones_mutex_);
  ++work_;
}

void AutogradDriver::end_work() {
  std::vector<std::shared_ptr<void>> dropped;
  {
    MutexLock lock(tombstones_mutex_);
    --work_;
    dropped.swap(tombstones_);
  }
  // User code may run in the destructors, so they run on an executor thread only.
  if (!dropped.empty() && Executor::current() != &executor_) {
    executor_.schedule([dropped = std::move(dropped)] {});
  }
  dropped.clear();
  agent_.release_work();
}

void AutogradDriver::drop_on_executor(std::vector<std::shared_ptr<void>> dropped) {
  {
    MutexLock lock(tombstones_mutex_);
    if (work_ > 0) {
      tombstones_.insert(tombstones_.end(), std::make_move_iterator(dropped.begin()),
                         std::make_move_iterator(dropped.end()));
      return;
    }
  }
  executor_.schedule([dropped = std::move(dropped)] {});
}

// ---- messages and events from other workers

void AutogradDriver::on_post(WorkerId from, Frame frame) {
  absl::StatusOr<AutogradBatch> batch = from_frame(frame);
  if (!batch.ok()) {
    // The message is lost. Without a suspicion, its pass would wait until the deadline.
    agent_.suspect(from, absl::UnavailableError(absl::StrCat("broke the autograd protocol: ",
                                                             batch.status().message())));
    return;
  }
  WEFT_FAIL_POINT("autograd.arrived");
  step([&](ContextCore& core, AutogradActions& out) {
    for (AutogradMessage& each : batch->piggybacked) {
      core.on_message(from, std::move(each), out);
    }
    core.on_message(from, std::move(batch->message), out);
  });
}

void AutogradDriver::on_gone(WorkerId peer) {
  step([&](ContextCore& core, AutogradActions& out) { core.on_peer_dead(peer, out); });
}

void AutogradDriver::fail_pass(const PassId& pass, absl::Status status) {
  step([&](ContextCore& core, AutogradActions& out) {
    core.on_local_failure(pass, {.status = std::move(status)}, out);
  });
}

// Makes the error for the caller of backward(). It names the node that failed, and the worker.
absl::Status AutogradDriver::describe(const PassFailure& failure) const {
  const WorkerId at = failure.died.valid() ? failure.died : failure.worker;
  const std::string name = agent_.name_of(at);
  std::string where = "backward failed";
  if (!failure.node.empty()) absl::StrAppend(&where, " in node '", failure.node, "'");
  if (failure.died.valid()) {
    absl::StrAppend(&where, " because worker '", name, "' died: ");
  } else {
    absl::StrAppend(&where, " on worker '", name, "': ");
  }
  return with_ran(raised_at(prepend(where, failure.status), name), Ran::kYes);
}

}  // namespace weft::dist_autograd_internal
