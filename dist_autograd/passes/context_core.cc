#include "weft/dist_autograd/passes/context_core.h"

#include <algorithm>
#include <string>
#include <utility>

#include "weft/base/faults/breakage.h"
#include "weft/base/status.h"

namespace weft::dist_autograd_internal {

using namespace backward;  // NOLINT: the actions, in the file that gives them

ContextCore::ContextCore(WorkerId self, size_t contexts_per_creator)
    : self_(self), contexts_per_creator_(contexts_per_creator) {}
ContextCore::~ContextCore() = default;

// ---- contexts

ContextId ContextCore::create() {
  const ContextId context{self_, ++last_number_};
  contexts_.try_emplace(context);
  return context;
}

ContextCore::Entry* ContextCore::find(const ContextId& context) {
  auto it = contexts_.find(context);
  return it == contexts_.end() ? nullptr : &it->second;
}
const ContextCore::Entry* ContextCore::find(const ContextId& context) const {
  auto it = contexts_.find(context);
  return it == contexts_.end() ? nullptr : &it->second;
}

PassCore* ContextCore::find_pass(const PassId& pass) {
  Entry* entry = find(pass.context);
  return entry != nullptr && entry->pass && entry->pass->id() == pass ? entry->pass.get() : nullptr;
}

// Says why a context is not open here. OK: this worker knows nothing about it, so it may be new.
absl::Status ContextCore::why_unknown(const ContextId& context) const {
  const std::string name = context.to_string();
  if (!context.valid()) {
    return with_ran(absl::InvalidArgumentError("a context without an id"), Ran::kNo);
  }
  if (is_dead(context.creator)) {
    return with_ran(absl::UnavailableError(absl::StrCat(name, ": its creator is dead")), Ran::kNo);
  }
  if (released_.contains(context) && !WEFT_BREAK(released_context_made_again)) {
    return with_ran(absl::FailedPreconditionError(absl::StrCat(name, " is released")), Ran::kNo);
  }
  if (context.creator == self_) {
    return with_ran(absl::NotFoundError(absl::StrCat(name, " was never created")), Ran::kNo);
  }
  return absl::OkStatus();
}

absl::Status ContextCore::check(const ContextId& context) const {
  if (find(context) != nullptr) return absl::OkStatus();
  absl::Status why = why_unknown(context);
  if (!why.ok()) return why;
  return with_ran(absl::NotFoundError(absl::StrCat(context.to_string(), " is not known here")),
                  Ran::kNo);
}

// Every context of this worker up to the returned number is released.
uint64_t ContextCore::own_watermark() const {
  auto it = contexts_.lower_bound(ContextId{self_, 0});
  const bool any = it != contexts_.end() && it->first.creator == self_;
  return any ? it->first.number - 1 : last_number_;
}

absl::Status ContextCore::release(const ContextId& context, AutogradActions& out) {
  WEFT_RETURN_IF_ERROR(check(context));
  if (context.creator != self_) {
    return absl::FailedPreconditionError(
        absl::StrCat("only its creator may release ", context.to_string()));
  }
  drop_context(context, std::nullopt, out);
  return absl::OkStatus();
}

// Forgets the context and passes the release on to its peers. A worker that gets the release a
// second time has forgotten the context and sends nothing, so the flood ends.
void ContextCore::drop_context(const ContextId& context, std::optional<WorkerId> told_by,
                               AutogradActions& out) {
  Entry& entry = contexts_.at(context);
  step(entry, out, [&](PassCore& pass) {
    pass.drop(is_dead(context.creator)
                  ? absl::UnavailableError(absl::StrCat("worker ", context.creator.to_string(),
                                                        ", who created the context, died"))
                  : absl::CancelledError("the context was closed during backward"),
              out);
  });
  const std::set<WorkerId> peers = std::move(entry.peers);
  contexts_.erase(context);
  if (auto joined = joined_.find(context.creator); joined != joined_.end()) {
    if (--joined->second == 0) joined_.erase(joined);
  }
  released_.add(context);
  if (context.creator == self_) released_.add_until(self_, own_watermark());
  out.push_back(DropContext{context});
  for (WorkerId peer : peers) {
    if (WEFT_BREAK(release_not_passed_on) && told_by) continue;
    if (peer == told_by || is_dead(peer)) continue;
    out.push_back(Send{peer, ReleaseContextMessage{context, released_.watermark(context.creator)}});
  }
}

void ContextCore::on_release(WorkerId from, const ReleaseContextMessage& message,
                             AutogradActions& out) {
  const WorkerId creator = message.context.creator;
  if (!message.context.valid() || creator == self_) return;
  released_.add_until(creator, message.watermark);
  if (find(message.context) == nullptr) {
    released_.add(message.context);
  } else {
    drop_context(message.context, from, out);
  }
  // The watermark also releases contexts whose own RELEASE_CONTEXT is still on its way.
  std::vector<ContextId> below;
  for (auto it = contexts_.lower_bound(ContextId{creator, 0});
       it != contexts_.end() && it->first.creator == creator &&
       it->first.number <= message.watermark;
       ++it) {
    below.push_back(it->first);
  }
  for (const ContextId& context : below) drop_context(context, from, out);
}

// ---- recording

void ContextCore::add_peer(Entry& entry, WorkerId peer) {
  if (peer != self_ && !is_dead(peer)) entry.peers.insert(peer);
}

absl::Status ContextCore::note_peer(const ContextId& context, WorkerId peer) {
  WEFT_RETURN_IF_ERROR(check(context));
  add_peer(*find(context), peer);
  return absl::OkStatus();
}

absl::Status ContextCore::note_send(const ContextId& context, const SendId& send, WorkerId peer) {
  WEFT_RETURN_IF_ERROR(check(context));
  Entry& entry = *find(context);
  add_peer(entry, peer);
  entry.sends.push_back({send, peer});
  return absl::OkStatus();
}

absl::StatusOr<AutogradMetadata> ContextCore::metadata(const ContextId& context) const {
  WEFT_RETURN_IF_ERROR(check(context));
  return AutogradMetadata{.context = context, .histories = histories(*find(context))};
}

absl::Status ContextCore::on_call(WorkerId from, const AutogradMetadata& metadata,
                                  AutogradActions& out) {
  Entry* entry = find(metadata.context);
  const WorkerId creator = metadata.context.creator;
  if (entry == nullptr) {
    WEFT_RETURN_IF_ERROR(why_unknown(metadata.context));
    if (joined_[creator] >= contexts_per_creator_) {
      return with_ran(
          absl::ResourceExhaustedError(absl::StrCat(
              metadata.context.to_string(), ": ", contexts_per_creator_,
              " contexts of its creator are open here, as many as one worker may have")),
          Ran::kNo);
    }
    ++joined_[creator];
    entry = &contexts_[metadata.context];
  }
  add_peer(*entry, from);
  // The dead worker cannot pass a release on to this one, and the creator may not know this one as
  // a peer. So tell the creator.
  if (is_dead(from) && creator != self_) {
    out.push_back(Send{creator, HoldsContextMessage{metadata.context}});
  }
  learn(*entry, metadata.histories, out);
  return absl::OkStatus();
}

// ---- what is known about ended passes

std::vector<PassHistory> ContextCore::histories(const Entry& entry) const {
  std::vector<PassHistory> all;
  for (const auto& [worker, initiator] : entry.initiators) {
    if (initiator.history.decided > 0) all.push_back(initiator.history);
  }
  return all;
}

// Only its initiator writes a history, so the longer one contains the shorter one.
void ContextCore::learn(Entry& entry, const std::vector<PassHistory>& histories,
                        AutogradActions& out) {
  if (WEFT_BREAK(histories_not_read)) return;
  for (const PassHistory& news : histories) {
    if (news.initiator == self_) continue;
    Initiator& initiator = entry.initiators[news.initiator];
    if (news.decided <= initiator.history.decided) continue;
    initiator.history = news;
    initiator.settled = std::max(initiator.settled, news.decided);
    PassCore* pass = entry.pass.get();
    if (pass == nullptr || pass->id().initiator != news.initiator) continue;
    const PassHistory::Outcome outcome = news.outcome(pass->id().k);
    if (outcome != PassHistory::Outcome::kUnknown) {
      step(entry, out, [&](PassCore& pass) {
        pass.on_decided(outcome == PassHistory::Outcome::kCommitted, out);
      });
    } else if (pass->id().k <= news.decided) {
      step(entry, out, [&](PassCore& pass) {
        pass.drop(absl::AbortedError("the decision is too long ago to be known"), out);
      });
    }
  }
}

ContextCore::PassStanding ContextCore::standing(const PassId& pass) const {
  const Entry* entry = find(pass.context);
  if (entry == nullptr) return PassStanding::kUnknown;
  if (entry->pass && entry->pass->id() == pass) return PassStanding::kRunning;
  auto it = entry->initiators.find(pass.initiator);
  if (it == entry->initiators.end()) return PassStanding::kUnknown;
  if (it->second.dropped.contains(pass.k)) return PassStanding::kDropped;
  switch (it->second.history.outcome(pass.k)) {
    case PassHistory::Outcome::kCommitted:
      return PassStanding::kCommitted;
    case PassHistory::Outcome::kAborted:
      return PassStanding::kAborted;
    case PassHistory::Outcome::kUnknown:
      break;
  }
  return PassStanding::kUnknown;
}

absl::Status ContextCore::check_settled(const ContextId& context) const {
  const Entry* entry = find(context);
  if (entry == nullptr) return absl::OkStatus();
  if (entry->pass) {
    return absl::FailedPreconditionError(
        absl::StrCat(entry->pass->id().to_string(), " has not ended"));
  }
  for (const auto& [initiator, known] : entry->initiators) {
    for (const uint64_t k : known.dropped) {
      if (known.history.outcome(k) != PassHistory::Outcome::kCommitted) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("backward pass ", k, " of worker ", initiator.to_string(), " in context ",
                       context.to_string(), " was committed after this worker had given it up"));
    }
  }
  return absl::OkStatus();
}

// ---- stepping a pass

// Runs `event` on the entry's pass, if there is one. If the pass has ended then, records how.
template <class Event>
void ContextCore::step(Entry& entry, AutogradActions& out, Event&& event) {
  if (!entry.pass) return;
  const size_t first_new = out.size();
  event(*entry.pass);
  after_step(entry, out);
  stamp(entry, first_new, out);
}

template <class Event>
void ContextCore::step(const PassId& pass, AutogradActions& out, Event&& event) {
  if (find_pass(pass) != nullptr) step(*find(pass.context), out, std::forward<Event>(event));
}

void ContextCore::after_step(Entry& entry, AutogradActions& out) {
  PassCore& pass = *entry.pass;
  if (pass.failure().died.valid() && !entry.lost) entry.lost = pass.failure();
  if (!pass.ended()) return;
  const PassId id = pass.id();
  Initiator& initiator = entry.initiators[id.initiator];
  initiator.settled = std::max(initiator.settled, id.k);
  const bool committed = pass.state() == PassCore::State::kCommitted;
  if (pass.initiator()) {
    initiator.history.append(committed);
    if (!committed) {
      initiator.aborted_here[id.k] = pass.failure();
      if (initiator.aborted_here.size() > kMaxAbortedListed) {
        initiator.aborted_here.erase(initiator.aborted_here.begin());
      }
    }
  }
  if (pass.state() == PassCore::State::kDropped) initiator.dropped.insert(id.k);
  if (committed) {
    // The StageMerge of this pass names the spent sends. Search backwards: it was added just now.
    for (auto it = out.rbegin(); it != out.rend(); ++it) {
      auto* merge = std::get_if<StageMerge>(&*it);
      if (merge == nullptr || merge->pass != id) continue;
      std::erase_if(entry.sends, [&](const PassCore::Source& source) {
        return std::binary_search(merge->spent.begin(), merge->spent.end(), source.id);
      });
      break;
    }
  }
  entry.pass.reset();
}

// Puts the current histories on the messages that the event has just added.
void ContextCore::stamp(const Entry& entry, size_t first_new, AutogradActions& out) const {
  for (size_t i = first_new; i < out.size(); ++i) {
    auto* send = std::get_if<Send>(&out[i]);
    if (send == nullptr) continue;
    if (PassHeader* header = header_of(send->message)) header->histories = histories(entry);
    if (auto* publish = std::get_if<PublishMessage>(&send->message)) {
      publish->histories = histories(entry);
    }
  }
}

absl::StatusOr<PassId> ContextCore::start(const ContextId& context, const StartOptions& options,
                                          AutogradActions& out) {
  WEFT_RETURN_IF_ERROR(check(context));
  Entry& entry = *find(context);
  if (entry.lost) {
    return absl::UnavailableError(absl::StrCat(context.to_string(), " is lost: worker ",
                                               entry.lost->died.to_string(),
                                               " died in a backward pass of it"));
  }
  if (entry.pass) {
    return absl::FailedPreconditionError(absl::StrCat("backward on ", context.to_string(),
                                                      " while ", entry.pass->id().to_string(),
                                                      " of the same context runs"));
  }
  Initiator& initiator = entry.initiators[self_];
  initiator.history.initiator = self_;
  const PassId id{context, self_, initiator.history.decided + 1};
  entry.pass = std::make_unique<PassCore>(PassCore::Setup{.pass = id,
                                                          .self = self_,
                                                          .mode = options.mode,
                                                          .retain_graph = options.retain_graph,
                                                          .sources = entry.sends,
                                                          .dead = &dead_});
  step(entry, out, [&](PassCore& pass) { pass.start(options.budget, out); });
  return id;
}

void ContextCore::on_local_failure(const PassId& id, PassFailure failure, AutogradActions& out) {
  step(id, out, [&](PassCore& pass) { pass.on_local_failure(std::move(failure), out); });
}
void ContextCore::on_local_progress(const PassId& id, LocalProgress&& progress,
                                    AutogradActions& out) {
  step(id, out, [&](PassCore& pass) { pass.on_local_progress(progress, out); });
}
void ContextCore::on_discovered(const PassId& id, const std::vector<PeerSends>& reached,
                                AutogradActions& out) {
  step(id, out, [&](PassCore& pass) { pass.on_discovered(reached, out); });
}
void ContextCore::on_hold(const PassId& id) {
  if (PassCore* pass = find_pass(id)) pass->on_hold();
}
void ContextCore::on_hold_released(const PassId& id, AutogradActions& out) {
  step(id, out, [&](PassCore& pass) { pass.on_hold_released(out); });
}
void ContextCore::on_deadline(const PassId& id, AutogradActions& out) {
  step(id, out, [&](PassCore& pass) { pass.on_deadline(out); });
}

// ---- messages

void ContextCore::on_message(WorkerId from, AutogradMessage&& message, AutogradActions& out) {
  if (is_dead(from) && !WEFT_BREAK(ended_peer_heard)) return;
  if (auto* release = std::get_if<ReleaseContextMessage>(&message)) {
    return on_release(from, *release, out);
  }
  Entry* entry = find(context_of(message));
  if (entry == nullptr) return on_unknown_context(from, message, out);
  if (std::holds_alternative<HoldsContextMessage>(message)) return add_peer(*entry, from);

  if (PassHeader* header = header_of(message)) learn(*entry, header->histories, out);
  if (auto* publish = std::get_if<PublishMessage>(&message)) {
    learn(*entry, publish->histories, out);
  }
  const PassId& id = *pass_of(message);
  if (entry->pass == nullptr || entry->pass->id() != id) {
    PassHeader* header = header_of(message);
    const bool late =
        id.k <= entry->initiators[id.initiator].settled && !WEFT_BREAK(ended_pass_joined);
    if (header == nullptr || late || id.initiator == self_ || !engage(*entry, from, *header, out)) {
      return on_other_pass(*entry, from, message, out);
    }
  }
  step(*entry, out, [&](PassCore& pass) {
    std::visit(
        [&](auto& typed) {
          if constexpr (requires { pass.on_message(from, typed, out); }) {
            pass.on_message(from, typed, out);
          }
        },
        message);
  });
}

// A context that was released here is released everywhere, so the sender is told so. If this worker
// never knew the context, it cannot take part, and the initiator gets FAIL.
void ContextCore::on_unknown_context(WorkerId from, const AutogradMessage& message,
                                     AutogradActions& out) {
  const ContextId& context = context_of(message);
  const PassId* pass = pass_of(message);
  const bool asks = pass == nullptr || std::holds_alternative<GradMessage>(message) ||
                    std::holds_alternative<ActivateMessage>(message) ||
                    std::holds_alternative<ReportMessage>(message) ||
                    std::holds_alternative<FailMessage>(message);
  if (!asks || from == self_) return;
  if (released_.contains(context) || is_dead(context.creator)) {
    out.push_back(Send{from, ReleaseContextMessage{context, released_.watermark(context.creator)}});
  } else if (pass != nullptr && pass->initiator != self_ && !is_dead(pass->initiator)) {
    refuse(*pass, {.status = check(context), .worker = self_}, out);
  }
}

// Joins a pass at its first message. Returns false if this worker does not join. Then it has told
// the initiator why, except if the initiator is dead or a later pass of the initiator runs here.
bool ContextCore::engage(Entry& entry, WorkerId from, const PassHeader& header,
                         AutogradActions& out) {
  const PassId& id = header.pass;
  add_peer(entry, from);
  if (is_dead(id.initiator)) return false;
  if (entry.lost) {
    PassFailure failure = *entry.lost;
    failure.worker = self_;
    refuse(id, std::move(failure), out);
    return false;
  }
  if (entry.pass) {
    const PassId& running = entry.pass->id();
    // An initiator runs one pass at a time, so the older pass has ended: the message is late.
    if (running.initiator == id.initiator && running.k > id.k) return false;
    refuse(id,
           {.status = absl::FailedPreconditionError(
                absl::StrCat(id.to_string(), " reached worker ", self_.to_string(), " while ",
                             running.to_string(), " of the same context runs")),
            .worker = self_},
           out);
    return false;
  }
  entry.pass = std::make_unique<PassCore>(PassCore::Setup{.pass = id,
                                                          .self = self_,
                                                          .mode = header.mode,
                                                          .retain_graph = header.retain_graph,
                                                          .sources = entry.sends,
                                                          .dead = &dead_});
  entry.pass->engage(header.budget, out);
  return true;
}

void ContextCore::refuse(const PassId& pass, PassFailure failure, AutogradActions& out) const {
  out.push_back(Send{pass.initiator, FailMessage{pass, std::move(failure)}});
}

// The message is about a pass that has ended here, or that this worker never joined.
void ContextCore::on_other_pass(Entry& entry, WorkerId from, AutogradMessage& message,
                                AutogradActions& out) {
  const PassId& id = *pass_of(message);
  Initiator& initiator = entry.initiators[id.initiator];
  if (auto* abort = std::get_if<AbortMessage>(&message)) {
    // The abort may come before the message that would have engaged this worker.
    if (id.initiator != self_) initiator.settled = std::max(initiator.settled, id.k);
    if (abort->failure.died.valid() && !entry.lost) entry.lost = abort->failure;
    return;
  }
  // The sender still works for a pass that this initiator has aborted. The initiator did not know
  // that it was engaged, so it gets the ABORT now.
  if (id.initiator == self_) {
    auto aborted = initiator.aborted_here.find(id.k);
    if (aborted != initiator.aborted_here.end()) {
      out.push_back(Send{from, AbortMessage{id, aborted->second}});
    }
  }
}

// ---- the group

void ContextCore::on_peer_dead(WorkerId dead, AutogradActions& out) {
  if (dead == self_ || !dead_.insert(dead).second) return;
  for (const ContextId& context : contexts()) {
    Entry& entry = contexts_.at(context);
    step(entry, out, [&](PassCore& pass) { pass.on_peer_dead(dead, out); });
    if (context.creator == dead && !WEFT_BREAK(dead_creator_ignored)) {
      drop_context(context, std::nullopt, out);
    } else if (entry.peers.erase(dead) > 0 && context.creator != self_ &&
               !WEFT_BREAK(lost_peer_not_told)) {
      out.push_back(Send{context.creator, HoldsContextMessage{context}});
    }
  }
  released_.forget(dead);
}

std::vector<ContextId> ContextCore::contexts() const {
  std::vector<ContextId> all;
  for (const auto& [context, entry] : contexts_) all.push_back(context);
  return all;
}

std::vector<WorkerId> ContextCore::peers(const ContextId& context) const {
  const Entry* entry = find(context);
  if (entry == nullptr) return {};
  return {entry->peers.begin(), entry->peers.end()};
}

void ContextCore::append_ties(std::vector<WorkerId>& workers) const {
  for (const auto& [id, entry] : contexts_) {
    workers.insert(workers.end(), entry.peers.begin(), entry.peers.end());
  }
}

}  // namespace weft::dist_autograd_internal
