#include "weft/tests/stack_sim/stack_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <random>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/internal/ownership_types.h"
#include "weft/rref/rref.h"
#include "weft/tests/stack_sim/ledger.h"
#include "weft/tests/stack_sim/stack_faults.h"
#include "weft/tests/stack_sim/stack_world.h"
#include "weft/tests/stack_sim/training.h"

namespace weft::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Run;
Run* running = nullptr;

}  // namespace

// A value on one worker. It counts the live values of this kind.
class Cell {
 public:
  explicit Cell(int64_t value);
  ~Cell();
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  int64_t get(uint64_t call) const;

 private:
  const int64_t value_;
  const RpcRuntime* const home_;
};
WEFT_REGISTER_CLASS(Cell, weft::constructor<int64_t>(), &Cell::get);

int64_t record(uint64_t call);
WEFT_REGISTER_FUNCTION(record);
Future<int64_t> slow(uint64_t call, int64_t milliseconds);
WEFT_REGISTER_FUNCTION(slow);
// Each hop is a call of its own. Its caller records the result in the ledger.
Future<int64_t> relay(uint64_t call, std::vector<uint32_t> path);
WEFT_REGISTER_FUNCTION(relay);
void keep(uint64_t call, RRef<Cell> cell);
WEFT_REGISTER_FUNCTION(keep);
Future<at::Tensor> chain(at::Tensor x, std::vector<uint32_t> path);
WEFT_REGISTER_FUNCTION(chain);

namespace {

class Run {
 public:
  explicit Run(const RunOptions& options)
      : options_(options), random_(options.seed), world_(3 + static_cast<uint32_t>(random_() % 3)) {
    running = this;
    pools_.resize(world_.size());
    report_.operations.clear();
    if (options_.faults) faults_.begin();
  }
  ~Run() {
    trainings_.clear();
    pools_.clear();
    running = nullptr;
  }

  RunReport run() {
    for (uint32_t step = 0; step < options_.steps;) {
      if (pick(100) < 85 && world_.ready() > 0) {
        task();
      } else if (pick(100) < 60) {
        // Mostly when nothing else is left to do. Otherwise deadlines would pass before anything
        // happens.
        if (world_.ready() == 0 || pick(20) == 0) pass_time(seconds(5));
      } else if (options_.faults && pick(100) < 12) {
        faults_.one();
      } else {
        program_step();
        ++step;
      }
    }
    faults_.stop();
    settle(seconds(60));  // a vanished frame is noticed after 30 s
    check_end();
    return finish();
  }

  // ---- for handlers
  Ledger& ledger() { return ledger_; }
  Incarnation* here() { return world_.find(CallScope::current().runtime.get()); }
  void keep(RRef<Cell> cell) {
    if (Incarnation* incarnation = here()) pool_of(*incarnation).push_back(std::move(cell));
  }
  std::map<const RpcRuntime*, int64_t>& cells() { return cells_; }

  // Records the result of a call of `caller` when it is answered.
  template <class T>
  void watch(uint64_t call, const Future<T>& future, std::optional<int64_t> expected) {
    future.state()->on_complete_inline([this, call, future, expected] {
      const auto& result = future.state()->result();
      bool right = true;
      if constexpr (std::is_same_v<T, int64_t>) {
        right = !result.ok() || !expected || *result == *expected;
      }
      ledger_.told(call, result.status(), right);
      mix(call * 31 + static_cast<uint64_t>(result.status().code()));
    });
  }
  CallOptions call_options() {
    static constexpr int64_t kTimes[] = {0, 30, 300, 3000};
    const int64_t time = kTimes[pick(4)];
    CallOptions options;
    if (time > 0) options.timeout = milliseconds(time);
    return options;
  }
  uint64_t pick(uint64_t bound) { return random_() % bound; }

 private:
  using Pool = std::vector<RRef<Cell>>;

  Pool& pool_of(Incarnation& incarnation) { return pools_[incarnation.rank]; }
  void mix(uint64_t value) { report_.hash = (report_.hash ^ value) * 0x100000001b3u; }
  // A worker's program stops with the worker, so its objects are dropped.
  void forget(uint32_t rank) {
    pools_[rank].clear();
    trainings_.erase(world_.incarnation(rank).info.id);
  }
  void trace(const std::string& what) {
    if (options_.trace) {
      std::cerr << world_.now().count() / 1000000.0 << " ms  " << what << "\n";
    }
  }
  void count(const std::string& operation) { ++report_.operations[operation]; }

  void task() {
    const uint64_t choice = pick(world_.ready());
    mix(choice);
    ++report_.events;
    world_.run_one(choice);
  }
  void pass_time(Nanoseconds at_most) {
    if (world_.advance(world_.now() + at_most)) mix(static_cast<uint64_t>(world_.now().count()));
    ++report_.events;
  }
  // All workers run until `span` of virtual time has passed.
  void settle(Nanoseconds span) {
    const Nanoseconds end = world_.now() + span;
    while (true) {
      if (world_.ready() > 0) {
        task();
      } else if (!world_.advance(end)) {
        return;
      } else {
        ++report_.events;
      }
    }
  }

  Incarnation* someone() {
    Incarnation& incarnation = world_.incarnation(static_cast<uint32_t>(pick(world_.size())));
    return incarnation.alive && incarnation.joined ? &incarnation : nullptr;
  }
  std::string anyone() { return absl::StrCat("w", pick(world_.size())); }
  std::vector<uint32_t> path(size_t longest) {
    std::vector<uint32_t> path(pick(longest + 1));
    for (uint32_t& hop : path) hop = static_cast<uint32_t>(pick(world_.size()));
    return path;
  }

  template <class F>
  static void in_scope(Incarnation& incarnation, ContextId context, F f) {
    CallScope scope;
    scope.runtime = incarnation.runtime;
    scope.context = context;
    CallScopeGuard guard(std::move(scope));
    f();
  }

  void program_step() {
    Incarnation* incarnation = someone();
    if (incarnation == nullptr) return;
    in_scope(*incarnation, {}, [&] {
      switch (pick(11)) {
        case 0:
        case 1:
          return plain(*incarnation);
        case 2:
          return cancelled(*incarnation);
        case 3:
          return relayed(*incarnation);
        case 4:
          return create(*incarnation);
        case 5:
          return send_reference(*incarnation);
        case 6:
          return use_reference(*incarnation);
        case 7:
          return drop(*incarnation);
        case 8:
          return train(*incarnation);
        default:
          return backward(*incarnation);
      }
    });
  }

  void plain(Incarnation& incarnation) {
    count("call");
    const uint64_t call = ledger_.ask(incarnation.info.id);
    const std::string to = anyone();
    trace(absl::StrCat(incarnation.info.name, " calls ", to, ": ", call));
    watch(call, rpc_async({to, call_options()}, record, call), static_cast<int64_t>(call) + 1);
  }
  void cancelled(Incarnation& incarnation) {
    count("cancel");
    const uint64_t call = ledger_.ask(incarnation.info.id);
    const auto time = static_cast<int64_t>(pick(400));
    const Future<int64_t> future = rpc_async({anyone(), call_options()}, slow, call, time);
    watch(call, future, std::nullopt);
    incarnation.clock.call_at(incarnation.clock.now() + milliseconds(pick(400)),
                              [future] { future.cancel(); });
  }
  void relayed(Incarnation& incarnation) {
    count("relay");
    const uint64_t call = ledger_.ask(incarnation.info.id);
    const auto hops = path(4);
    watch(call, rpc_async({anyone(), call_options()}, relay, call, hops),
          static_cast<int64_t>(hops.size()));
  }
  void create(Incarnation& incarnation) {
    count("remote");
    const std::string to = anyone();
    const CallOptions options = call_options();
    const auto value = static_cast<int64_t>(pick(1000));
    try {
      pool_of(incarnation).push_back(remote<Cell>({to, options}, value));
    } catch (const RpcError&) {
      count("remote: refused");
    }
  }
  void send_reference(Incarnation& incarnation) {
    Pool& pool = pool_of(incarnation);
    if (pool.empty()) return;
    count("send reference");
    const uint64_t call = ledger_.ask(incarnation.info.id);
    watch(call, rpc_async({anyone(), call_options()}, sim::keep, call, pool[pick(pool.size())]),
          std::nullopt);
  }
  void use_reference(Incarnation& incarnation) {
    Pool& pool = pool_of(incarnation);
    if (pool.empty()) return;
    count("use reference");
    const uint64_t call = ledger_.ask(incarnation.info.id);
    watch(call, pool[pick(pool.size())].with(call_options()).rpc_async(&Cell::get, call),
          std::nullopt);
  }
  void drop(Incarnation& incarnation) {
    Pool& pool = pool_of(incarnation);
    if (pool.empty()) return;
    count("drop");
    std::swap(pool[pick(pool.size())], pool.back());
    pool.pop_back();
  }

  // loss = sum(a * chain1(x) + b * chain2(x)). Each hop doubles, so the gradient is known.
  struct Backward {
    Incarnation* incarnation;
    ContextId context;
    at::Tensor x;
    double expected = 0;
    std::vector<Future<at::Tensor>> parts;
    std::vector<double> factors;
    size_t waiting = 0;
    bool unused = false;
  };
  void backward(Incarnation& incarnation) {
    if (!incarnation.in_group()) return;
    const absl::StatusOr<ContextId> context = incarnation.autograd->create_context();
    if (!context.ok()) return;
    count("backward");
    auto state = std::make_shared<Backward>();
    state->incarnation = &incarnation;
    state->context = *context;
    state->x = at::full({2}, 1.0, at::kDouble).requires_grad_();
    state->unused = pick(4) == 0;
    in_scope(incarnation, *context, [&] {
      const size_t parts = 1 + pick(3);
      for (size_t part = 0; part < parts; ++part) {
        const auto hops = path(3);
        state->factors.push_back(static_cast<double>(pick(5)) + 1);
        state->expected += state->factors.back() * std::pow(2.0, hops.size() + 1.0);
        state->parts.push_back(rpc_async({anyone(), call_options()}, chain, state->x, hops));
      }
      if (state->unused) (void)rpc_async({anyone(), call_options()}, chain, state->x, path(2));
      state->waiting = state->parts.size();
      for (const Future<at::Tensor>& part : state->parts) {
        part.state()->on_complete_inline([this, state] {
          if (--state->waiting > 0) return;
          state->incarnation->executor.schedule([this, state] { start_pass(state); });
        });
      }
    });
  }
  void start_pass(const std::shared_ptr<Backward>& state) {
    at::Tensor loss;
    for (size_t i = 0; i < state->parts.size(); ++i) {
      const auto& result = state->parts[i].state()->result();
      if (!result.ok()) {
        count("backward: a call failed");
        (void)state->incarnation->autograd->release(state->context);
        return;
      }
      const at::Tensor term = (*result * state->factors[i]).sum();
      loss = loss.defined() ? loss + term : term;
    }
    state->parts.clear();
    dist_autograd_internal::AutogradDriver::PassOptions options;
    options.mode = static_cast<dist_autograd_internal::BackwardMode>(state->unused ? 0 : pick(3));
    options.timeout = milliseconds(500 + pick(5000));
    const Future<void> pass =
        state->incarnation->autograd->backward(state->context, {loss}, options);
    pass.state()->on_complete_inline([this, state, pass] {
      state->incarnation->executor.schedule([this, state, pass] { end_pass(state, pass); });
    });
  }
  void end_pass(const std::shared_ptr<Backward>& state, const Future<void>& pass) {
    const absl::Status status = pass.state()->result().status();
    dist_autograd_internal::AutogradDriver& driver = *state->incarnation->autograd;
    const absl::StatusOr<at::Tensor> gradient = driver.gradient(state->context, state->x);
    mix(static_cast<uint64_t>(status.code()) + 7);
    if (status.ok()) {
      count("backward: committed");
      const bool right =
          gradient.ok() && gradient->defined() && (*gradient == state->expected).all().item<bool>();
      if (!right) {
        ledger_.violation(
            absl::StrCat(state->context.to_string(), " committed a wrong gradient: ",
                         gradient.ok() ? "other values" : gradient.status().ToString()));
      }
    } else {
      count(absl::StrCat("backward: ", absl::StatusCodeToString(status.code())));
      if (gradient.ok() && gradient->defined()) {
        ledger_.violation(absl::StrCat(state->context.to_string(),
                                       " failed and shows a gradient: ", status.ToString()));
      }
    }
    driver.release(state->context);
  }

  void train(Incarnation& incarnation) {
    if (!incarnation.in_group()) return;
    count("train");
    Training::Options options;
    options.number = ++last_training_;
    for (size_t owners = 1 + pick(3); owners > 0; --owners) options.owners.push_back(anyone());
    options.rounds = static_cast<uint32_t>(1 + pick(4));
    options.step_timeout = pick(3) == 0 ? milliseconds(1 + pick(300)) : milliseconds(0);
    options.note = [this](const std::string& what) {
      count(what);
      mix(what.size());
    };
    trace(absl::StrCat(incarnation.info.name, " trains ", options.number));
    auto training = std::make_shared<Training>(incarnation, book_, std::move(options));
    trainings_.emplace(incarnation.info.id, training);
    try {
      training->begin();
    } catch (const RpcError&) {
      count("train: refused");
    }
  }

  // ---- the end
  void check_end() {
    for (Pool& pool : pools_) pool.clear();
    trainings_.clear();
    settle(seconds(25));
    for (const auto& incarnation : world_.incarnations()) {
      // If a pair has given up each other, a third worker may wait for what they would have told
      // each other.
      if (!incarnation->in_group() || a_pair_is_over()) continue;
      if (const std::string left = incarnation->left(); !left.empty()) ledger_.violation(left);
      if (const int64_t cells = cells_[incarnation->runtime.get()]; cells != 0) {
        ledger_.violation(absl::StrCat(incarnation->info.name, " has ", cells, " cells left"));
      }
      if (incarnation->membership->leases() != 0) {
        ledger_.violation(absl::StrCat(incarnation->info.name, " has leases left"));
      }
    }
    // Without the store pairs can give up each other. So an owner that one worker has given up may
    // live for others.
    if (!parted()) {
      const auto incarnations = [this](WorkerId who) {
        return std::any_of(world_.incarnations().begin(), world_.incarnations().end(),
                           [who](const auto& incarnation) {
                             return incarnation->info.id == who && incarnation->in_group();
                           });
      };
      for (const std::string& what : book_.violations(incarnations)) ledger_.violation(what);
    }
    ledger_.close([&](WorkerId caller) {
      for (const auto& incarnation : world_.incarnations()) {
        if (incarnation->info.id == caller) return !incarnation->alive;
      }
      return true;
    });
    shut_down();
  }
  // Without the store, perhaps only the two know of it, and both live.
  bool a_pair_is_over() const {
    for (const auto& one : world_.incarnations()) {
      for (const auto& other : world_.incarnations()) {
        if (!one->in_group() || !other->in_group() || one == other) continue;
        if (!one->agent->is_live(other->info.id)) return true;
      }
    }
    return false;
  }
  bool parted() const {
    return std::any_of(world_.incarnations().begin(), world_.incarnations().end(),
                       [](const auto& incarnation) { return incarnation->alone; });
  }
  void shut_down() {
    std::vector<std::pair<Incarnation*, Future<void>>> ends;
    for (const auto& incarnation : world_.incarnations()) {
      if (!incarnation->in_group()) continue;
      incarnation->quiescence->enter(seconds(20));
      Incarnation* one = incarnation.get();
      incarnation->quiescence->calls_drained().state()->on_complete_inline([one] {
        one->executor.schedule([one] {
          one->references->begin_shutdown();
          one->quiescence->references_dropped();
        });
      });
      ends.emplace_back(one, incarnation->quiescence->ended());
    }
    settle(seconds(30));
    for (auto& [incarnation, end] : ends) {
      if (!end.done()) {
        ledger_.violation(absl::StrCat(incarnation->info.name, " did not end its shutdown"));
      } else if (!end.state()->result().ok() && !parted()) {
        // If pairs gave up each other without the store, others still see both, and wait until the
        // limit.
        ledger_.violation(
            absl::StrCat(incarnation->info.name, ": ", end.state()->result().status().ToString()));
      }
    }
  }
  RunReport finish() {
    report_.violations = ledger_.violations();
    report_.calls = ledger_.calls();
    report_.errors = ledger_.errors();
    report_.frames = world_.counts().frames;
    report_.faults["frames lost"] += world_.counts().dropped;
    report_.faults["frames twice"] += world_.counts().duplicated;
    report_.faults["frames vanished"] += world_.counts().vanished;
    report_.virtual_seconds = static_cast<double>(world_.now().count()) / 1e9;
    return report_;
  }

  const RunOptions options_;
  std::mt19937_64 random_;
  RunReport report_;
  Ledger ledger_;
  std::map<const RpcRuntime*, int64_t> cells_;
  StepBook book_;
  StackWorld world_;
  std::vector<Pool> pools_;                                       // by rank
  std::multimap<WorkerId, std::shared_ptr<Training>> trainings_;  // shared with their rounds
  uint64_t last_training_ = 0;
  StackFaults faults_{world_,
                      random_,
                      report_.faults,
                      {.forget = [this](uint32_t rank) { forget(rank); },
                       .trace = [this](const std::string& what) { trace(what); }}};
};

}  // namespace

Cell::Cell(int64_t value) : value_(value), home_(CallScope::current().runtime.get()) {
  ++running->cells()[home_];
}
Cell::~Cell() {
  if (running != nullptr) --running->cells()[home_];
}
int64_t Cell::get(uint64_t call) const {
  running->ledger().executed(call);
  return value_;
}

int64_t record(uint64_t call) {
  running->ledger().executed(call);
  return static_cast<int64_t>(call) + 1;
}

Future<int64_t> slow(uint64_t call, int64_t time) {
  running->ledger().executed(call);
  auto promise = std::make_shared<Promise<int64_t>>();  // shared with the timer
  Future<int64_t> future = promise->future();
  Incarnation* incarnation = running->here();
  incarnation->kept.push_back(promise);
  incarnation->clock.call_at(incarnation->clock.now() + milliseconds(time),
                             [promise = std::weak_ptr(promise)] {
                               if (auto waiting = promise.lock()) waiting->set(0);
                             });
  return future;
}

Future<int64_t> relay(uint64_t call, std::vector<uint32_t> path) {
  running->ledger().executed(call);
  if (path.empty()) return Future<int64_t>::ready(0);
  const std::string next = absl::StrCat("w", path.back());
  path.pop_back();
  const uint64_t hop = running->ledger().ask(running->here()->info.id);
  const Future<int64_t> rest = rpc_async({next, running->call_options()}, relay, hop, path);
  running->watch(hop, rest, static_cast<int64_t>(path.size()));
  return rest.then([](const Future<int64_t>& depth) { return depth.wait() + 1; });
}

void keep(uint64_t call, RRef<Cell> cell) {
  running->ledger().executed(call);
  running->keep(std::move(cell));
}

Future<at::Tensor> chain(at::Tensor x, std::vector<uint32_t> path) {
  const at::Tensor doubled = x * 2;
  if (path.empty()) return Future<at::Tensor>::ready(doubled);
  const std::string next = absl::StrCat("w", path.back());
  path.pop_back();
  return rpc_async({next, running->call_options()}, chain, doubled, path);
}

RunReport simulate(const RunOptions& options) { return Run(options).run(); }

}  // namespace weft::sim
