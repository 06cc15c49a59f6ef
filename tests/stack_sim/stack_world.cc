#include "weft/tests/stack_sim/stack_world.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/rendezvous/join_records.h"

namespace weft::sim {
namespace {

constexpr char kGroup[] = "sim";

template <class T>
T value_of(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return *std::move(result);
}
void check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

}  // namespace

std::string Incarnation::left() const {
  const rref_internal::OwnershipGauges r = references->gauges();
  const AgentInfo a = agent->info();
  const dist_autograd_internal::AutogradDriver::Gauges g = autograd->gauges();
  const size_t total = r.owners + r.forks + r.users + r.pending_users + r.pending_children +
                       r.tombstones + r.parked_fetches + r.parked_forks + a.pending_calls +
                       a.running_calls + a.queued_calls + g.contexts + g.passes + g.sends;
  if (total == 0) return "";
  std::string text = absl::StrCat(
      info.name, " (", info.id.to_string(), ") keeps owners ", r.owners, ", forks ", r.forks,
      ", users ", r.users, ", pending ", r.pending_users, ", children ", r.pending_children,
      ", tombstones ", r.tombstones, ", fetches ", r.parked_fetches, ", parked ", r.parked_forks,
      ", calls ", a.pending_calls, ", running ", a.running_calls, ", contexts ", g.contexts,
      ", passes ", g.passes, ", sends ", g.sends);
  for (const rref_internal::Leak& leak : references->leaks()) {
    absl::StrAppend(&text, "; ", leak.to_string());
  }
  return text;
}

StackWorld::StackWorld(uint32_t workers) {
  network_.set_filter([this](const FrameHeader& header) { return fate(header); });
  std::vector<WorkerInfo> members;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    newest_.push_back(nullptr);
    members.push_back(add(rank, 1).info);
  }
  for (Incarnation* incarnation : newest_) start(*incarnation, members, false);
}

StackWorld::~StackWorld() {
  for (auto& incarnation : incarnations_) {
    if (!incarnation->alive) continue;
    incarnation->membership->stop();
    incarnation->quiescence->stop();
  }
  for (auto& incarnation : incarnations_) incarnation->kept.clear();
  for (auto& incarnation : incarnations_) incarnation->autograd->stop();
  for (auto& incarnation : incarnations_) incarnation->references->close();
  for (auto& incarnation : incarnations_) incarnation->agent->stop();
  for (auto& incarnation : incarnations_) incarnation->executor.stop();
  wires_.stop();
}

Incarnation& StackWorld::add(uint32_t rank, uint32_t number) {
  incarnations_.push_back(std::make_unique<Incarnation>());
  Incarnation& incarnation = *incarnations_.back();
  newest_[rank] = &incarnation;
  incarnation.rank = rank;
  incarnation.clock.advance(now_);
  incarnation.store = std::make_shared<testing::CuttableStore>(store_);
  incarnation.transport = std::make_unique<InprocTransport>(network_);
  check(incarnation.transport->listen());
  incarnation.info = {{rank, number}, absl::StrCat("w", rank), incarnation.transport->address()};
  rpc_internal::MemberRecord record;
  record.member.id = incarnation.info.id;
  record.member.name = incarnation.info.name;
  record.member.address = incarnation.info.address;
  check(store_->set(rpc_internal::JoinKeys(kGroup, 0).member(rank), record.encode()));
  return incarnation;
}

void StackWorld::start(Incarnation& incarnation, std::vector<WorkerInfo> members, bool joiner) {
  rpc_internal::AgentOptions options;
  options.group = kGroup;
  options.self = incarnation.info;
  options.dial_all = joiner;
  incarnation.agent = std::make_unique<rpc_internal::Agent>(
      options, *incarnation.transport, incarnation.clock, incarnation.executor);
  incarnation.quiescence = std::make_unique<rpc_internal::Quiescence>(
      *incarnation.agent, incarnation.executor, incarnation.clock, members);
  incarnation.quiescence->attach();
  auto list = std::make_shared<DeathRecords>(incarnation.store, kGroup, 0);
  const std::vector<DeathRecord> records = value_of(list->read());
  rpc_internal::Membership::Options how;
  how.find_incarnation = [store = incarnation.store](WorkerId who) {
    return rpc_internal::find_incarnation(*store, rpc_internal::JoinKeys(kGroup, 0), who);
  };
  incarnation.membership = std::make_unique<rpc_internal::Membership>(
      *incarnation.agent, *incarnation.quiescence, incarnation.clock, list, incarnation.executor,
      std::move(how));
  incarnation.membership->add_ties(
      [&incarnation](std::vector<WorkerId>& ties) { incarnation.references->append_ties(ties); });
  incarnation.membership->add_ties(
      [&incarnation](std::vector<WorkerId>& ties) { incarnation.autograd->append_ties(ties); });
  incarnation.membership->add_ties([&incarnation](std::vector<WorkerId>& ties) {
    incarnation.quiescence->append_awaited(ties);
  });
  incarnation.membership->attach(members, joiner);
  incarnation.runtime = std::make_shared<rpc_internal::WorkerRuntime>(
      *incarnation.agent, incarnation.executor, incarnation.clock,
      value_of(RegistryBuilder().build()),
      rpc_internal::RuntimeOptions{std::chrono::seconds(20), {}});
  incarnation.references =
      std::make_shared<rref_internal::RRefDriver>(*incarnation.agent, incarnation.executor);
  incarnation.references->attach(incarnation.runtime);
  incarnation.autograd = dist_autograd_internal::AutogradDriver::attach(incarnation.runtime);
  incarnation.runtime->set_hooks(incarnation.references.get(), incarnation.autograd.get());
  incarnation.runtime->attach();
  check(incarnation.agent->start(std::move(members)));
  incarnation.membership->start(records);
  if (!joiner) return;
  incarnation.joined = false;
  const Future<void> joined = incarnation.membership->joined();
  joined.state()->on_complete_inline([this, &incarnation, joined] {
    if (!incarnation.alive) return;
    incarnation.executor.schedule([this, &incarnation, good = joined.state()->result().ok()] {
      if (!good) return end(incarnation);  // as its process would exit
      incarnation.joined = true;
    });
  });
}

Incarnation* StackWorld::find(const RpcRuntime* runtime) {
  for (auto& incarnation : incarnations_) {
    if (incarnation->runtime.get() == runtime) return incarnation.get();
  }
  return nullptr;
}

size_t StackWorld::ready() const {
  size_t ready = wires_.ready();
  for (const auto& incarnation : incarnations_)
    ready += incarnation->alive ? incarnation->executor.ready() : 0;
  return ready;
}

void StackWorld::run_one(size_t choice) {
  if (choice < wires_.ready()) return wires_.run(choice);
  choice -= wires_.ready();
  for (auto& incarnation : incarnations_) {
    if (!incarnation->alive) continue;
    if (choice < incarnation->executor.ready()) return incarnation->executor.run(choice);
    choice -= incarnation->executor.ready();
  }
}

bool StackWorld::advance(Nanoseconds limit) {
  const TimePoint begin = ManualClock().now();  // all clocks began together
  TimePoint next = wires_clock_.next_timer();
  for (auto& incarnation : incarnations_) {
    if (incarnation->alive) next = std::min(next, incarnation->clock.next_timer());
  }
  if (next == kNever || next - begin > limit) return false;
  const Nanoseconds step = std::max<Nanoseconds>(next - begin - now_, Nanoseconds(0));
  now_ += step;
  wires_clock_.advance(step);
  // A timer may stop or start workers.
  for (size_t i = 0; i < incarnations_.size(); ++i) {
    if (incarnations_[i]->alive) incarnations_[i]->clock.advance(step);
  }
  return true;
}

void StackWorld::kill(uint32_t rank) { end(*newest_[rank]); }

void StackWorld::end(Incarnation& incarnation) {
  if (!incarnation.alive) return;
  incarnation.alive = false;
  incarnation.store->cut();
  network_.kill(incarnation.info.address);
  incarnation.transport->stop();
  incarnation.executor.stop();
}

void StackWorld::restart(uint32_t rank) {
  if (newest_[rank]->alive && newest_[rank]->membership->standing().ok()) return;
  kill(rank);
  Incarnation& incarnation = add(rank, newest_[rank]->info.id.incarnation + 1);
  std::vector<WorkerInfo> members;
  for (Incarnation* member : newest_) members.push_back(member->info);
  start(incarnation, std::move(members), true);
}

void StackWorld::sever(uint32_t a, uint32_t b) {
  network_.sever(newest_[a]->info.address, newest_[b]->info.address);
}

void StackWorld::cut(uint32_t from, uint32_t to) { cuts_.insert({from, to}); }

// When the cut is over, the connection closes, as after a TCP timeout. So both sides notice the
// loss.
void StackWorld::heal(uint32_t from, uint32_t to) {
  if (cuts_.erase({from, to}) > 0) sever(from, to);
}

void StackWorld::cut_store(uint32_t rank) {
  newest_[rank]->store->cut();
  newest_[rank]->alone = true;
}

void StackWorld::mend_stores() {
  for (auto& incarnation : incarnations_) {
    if (incarnation->alive) incarnation->store->mend();
  }
}

void StackWorld::heal_all() {
  while (!cuts_.empty()) {
    const auto [from, to] = *cuts_.begin();
    heal(from, to);
  }
}

void StackWorld::set_frame_faults(uint32_t duplicates, uint32_t vanishing, uint64_t seed) {
  duplicates_ = duplicates;
  vanishing_ = vanishing;
  random_ = seed | 1;
}

InprocNetwork::Fate StackWorld::fate(const FrameHeader& header) {
  ++counts_.frames;
  if (header.kind == FrameKind::kHeartbeat) ++counts_.heartbeats;
  if (cuts_.contains({header.source.index, header.destination.index})) {
    ++counts_.dropped;
    return InprocNetwork::Fate::kDrop;
  }
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  const auto drawn = static_cast<uint32_t>((random_ >> 33) % 100000);
  if (drawn < duplicates_) {
    ++counts_.duplicated;
    return InprocNetwork::Fate::kDuplicate;
  }
  if (drawn - duplicates_ < vanishing_ && header.kind != FrameKind::kDial &&
      header.kind != FrameKind::kGoodbye) {
    ++counts_.vanished;
    return InprocNetwork::Fate::kDrop;
  }
  return InprocNetwork::Fate::kDeliver;
}

}  // namespace weft::sim
