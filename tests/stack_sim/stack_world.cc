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

std::string Life::left() const {
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
  for (Life* life : newest_) start(*life, members, false);
}

StackWorld::~StackWorld() {
  for (auto& life : lives_) {
    if (!life->alive) continue;
    life->membership->stop();
    life->quiescence->stop();
  }
  for (auto& life : lives_) life->kept.clear();
  for (auto& life : lives_) life->autograd->stop();
  for (auto& life : lives_) life->references->close();
  for (auto& life : lives_) life->agent->stop();
  for (auto& life : lives_) life->executor.stop();
  wires_.stop();
}

Life& StackWorld::add(uint32_t rank, uint32_t incarnation) {
  lives_.push_back(std::make_unique<Life>());
  Life& life = *lives_.back();
  newest_[rank] = &life;
  life.rank = rank;
  life.clock.advance(now_);
  life.store = std::make_shared<testing::CuttableStore>(store_);
  life.transport = std::make_unique<InprocTransport>(network_);
  check(life.transport->listen());
  life.info = {{rank, incarnation}, absl::StrCat("w", rank), life.transport->address()};
  rpc_internal::MemberRecord record;
  record.member.id = life.info.id;
  record.member.name = life.info.name;
  record.member.address = life.info.address;
  check(store_->set(rpc_internal::JoinKeys(kGroup, 0).member(rank), record.encode()));
  return life;
}

void StackWorld::start(Life& life, std::vector<WorkerInfo> members, bool newcomer) {
  rpc_internal::AgentOptions options;
  options.group = kGroup;
  options.self = life.info;
  options.dial_all = newcomer;
  life.agent =
      std::make_unique<rpc_internal::Agent>(options, *life.transport, life.clock, life.executor);
  life.quiescence =
      std::make_unique<rpc_internal::Quiescence>(*life.agent, life.executor, life.clock, members);
  life.quiescence->attach();
  auto list = std::make_shared<VerdictList>(life.store, kGroup, 0);
  const std::vector<Verdict> verdicts = value_of(list->read());
  rpc_internal::Membership::Options how;
  how.find_life = [store = life.store](WorkerId who) {
    return rpc_internal::find_life(*store, rpc_internal::JoinKeys(kGroup, 0), who);
  };
  life.membership = std::make_unique<rpc_internal::Membership>(
      *life.agent, *life.quiescence, life.clock, list, life.executor, std::move(how));
  life.membership->add_ties(
      [&life](std::vector<WorkerId>& ties) { life.references->append_ties(ties); });
  life.membership->add_ties(
      [&life](std::vector<WorkerId>& ties) { life.autograd->append_ties(ties); });
  life.membership->add_ties(
      [&life](std::vector<WorkerId>& ties) { life.quiescence->append_awaited(ties); });
  life.membership->attach(members, newcomer);
  life.runtime = std::make_shared<rpc_internal::WorkerRuntime>(
      *life.agent, life.executor, life.clock, value_of(RegistryBuilder().build()),
      rpc_internal::RuntimeOptions{std::chrono::seconds(20), {}});
  life.references = std::make_shared<rref_internal::RRefDriver>(*life.agent, life.executor);
  life.references->attach(life.runtime);
  life.autograd = dist_autograd_internal::AutogradDriver::attach(life.runtime);
  life.runtime->set_hooks(life.references.get(), life.autograd.get());
  life.runtime->attach();
  check(life.agent->start(std::move(members)));
  life.membership->start(verdicts);
  if (!newcomer) return;
  life.joined = false;
  const Future<void> joined = life.membership->joined();
  joined.state()->on_complete_inline([this, &life, joined] {
    if (!life.alive) return;
    life.executor.schedule([this, &life, good = joined.state()->result().ok()] {
      if (!good) return end(life);  // as its process would
      life.joined = true;
    });
  });
}

Life* StackWorld::find(const RpcRuntime* runtime) {
  for (auto& life : lives_) {
    if (life->runtime.get() == runtime) return life.get();
  }
  return nullptr;
}

size_t StackWorld::ready() const {
  size_t ready = wires_.ready();
  for (const auto& life : lives_) ready += life->alive ? life->executor.ready() : 0;
  return ready;
}

void StackWorld::run_one(size_t choice) {
  if (choice < wires_.ready()) return wires_.run(choice);
  choice -= wires_.ready();
  for (auto& life : lives_) {
    if (!life->alive) continue;
    if (choice < life->executor.ready()) return life->executor.run(choice);
    choice -= life->executor.ready();
  }
}

bool StackWorld::advance(Nanoseconds limit) {
  const TimePoint begin = ManualClock().now();  // all clocks began together
  TimePoint next = wires_clock_.next_timer();
  for (auto& life : lives_) {
    if (life->alive) next = std::min(next, life->clock.next_timer());
  }
  if (next == kNever || next - begin > limit) return false;
  const Nanoseconds step = std::max<Nanoseconds>(next - begin - now_, Nanoseconds(0));
  now_ += step;
  wires_clock_.advance(step);
  // A timer may end or begin lives.
  for (size_t i = 0; i < lives_.size(); ++i) {
    if (lives_[i]->alive) lives_[i]->clock.advance(step);
  }
  return true;
}

void StackWorld::kill(uint32_t rank) { end(*newest_[rank]); }

void StackWorld::end(Life& life) {
  if (!life.alive) return;
  life.alive = false;
  life.store->cut();
  network_.kill(life.info.address);
  life.transport->stop();
  life.executor.stop();
}

void StackWorld::restart(uint32_t rank) {
  if (newest_[rank]->alive && newest_[rank]->membership->standing().ok()) return;
  kill(rank);
  Life& life = add(rank, newest_[rank]->info.id.incarnation + 1);
  std::vector<WorkerInfo> members;
  for (Life* member : newest_) members.push_back(member->info);
  start(life, std::move(members), true);
}

void StackWorld::sever(uint32_t a, uint32_t b) {
  network_.sever(newest_[a]->info.address, newest_[b]->info.address);
}

void StackWorld::cut(uint32_t from, uint32_t to) { cuts_.insert({from, to}); }

// What was lost meanwhile is noticed by the connection's end, as after TCP gave up.
void StackWorld::heal(uint32_t from, uint32_t to) {
  if (cuts_.erase({from, to}) > 0) sever(from, to);
}

void StackWorld::cut_store(uint32_t rank) {
  newest_[rank]->store->cut();
  newest_[rank]->alone = true;
}

void StackWorld::mend_stores() {
  for (auto& life : lives_) {
    if (life->alive) life->store->mend();
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
  if (header.kind == FrameKind::kBeat) ++counts_.beats;
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
  if (drawn - duplicates_ < vanishing_ && header.kind != FrameKind::kHello &&
      header.kind != FrameKind::kGoodbye) {
    ++counts_.vanished;
    return InprocNetwork::Fate::kDrop;
  }
  return InprocNetwork::Fate::kDeliver;
}

}  // namespace weft::sim
