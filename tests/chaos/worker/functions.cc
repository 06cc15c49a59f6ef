#include "weft/tests/chaos/worker/functions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <ATen/ops/zeros.h>

#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"

namespace weft::chaos {
namespace {

std::atomic<Tracker*> this_tracker{nullptr};
std::atomic<uint64_t> cells_alive{0};

void executed(const CallContext& call, uint64_t token) { tracker().executed(token, call.caller()); }

struct Shelf {
  Mutex mutex;
  std::array<RRef<Cell>, 64> places ABSL_GUARDED_BY(mutex);
};
Shelf& shelf() {
  static auto* const shelf = new Shelf();  // handlers may outlive static objects
  return *shelf;
}

struct Counter {
  Mutex mutex;
  std::optional<HostedModule<CounterModule>> module ABSL_GUARDED_BY(mutex);
};
Counter& counter() {
  static auto* const counter = new Counter();
  return *counter;
}

uint64_t mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdull;
  return value ^ (value >> 33);
}

}  // namespace

void set_tracker(Tracker* tracker) { this_tracker.store(tracker); }
Tracker& tracker() { return *this_tracker.load(); }

uint64_t checksum(std::string_view bytes) {
  uint64_t sum = mix(bytes.size());
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t size = std::min(bytes.size(), sizeof(word));
    std::memcpy(&word, bytes.data(), size);
    sum = mix(sum ^ word) + 1;
    bytes.remove_prefix(size);
  }
  return sum;
}

uint64_t answer_of(uint64_t token, uint64_t sum) { return mix(token) ^ sum; }

Destination at_most(WorkerId to, std::chrono::milliseconds timeout) {
  return Destination(to, CallOptions{.timeout = timeout});
}

// ---- Calls

uint64_t echo(CallContext& call, uint64_t token, uint64_t sum, const std::string& bytes) {
  executed(call, token);
  const uint64_t found = checksum(bytes);
  if (found != sum) tracker().broken(Broken::kArgument, token);
  return answer_of(token, found);
}
WEFT_REGISTER_FUNCTION(echo);

at::Tensor echo_tensor(CallContext& call, uint64_t token, const at::Tensor& tensor) {
  executed(call, token);
  if (!tensor.eq(static_cast<int64_t>(token)).all().item<bool>()) {
    tracker().broken(Broken::kArgument, token);
  }
  return tensor;
}
WEFT_REGISTER_FUNCTION(echo_tensor);

Future<uint64_t> answer_later(CallContext& call, uint64_t token, uint32_t ms) {
  executed(call, token);
  const std::shared_ptr<RpcRuntime> runtime = CallScope::current().runtime;
  Promise<uint64_t> promise(&runtime->executor());
  Future<uint64_t> future = promise.future();
  Clock& clock = runtime->clock();
  clock.call_at(clock.now() + std::chrono::milliseconds(ms),
                [promise = std::move(promise), token] { promise.set(token); });
  return future;
}
WEFT_REGISTER_FUNCTION(answer_later);

uint64_t hold_up(CallContext& call, uint64_t token, uint32_t ms) {
  executed(call, token);
  const Promise<void> never;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (!call.cancelled() && std::chrono::steady_clock::now() < end) {
    (void)never.future().wait_for(std::chrono::milliseconds(2));
  }
  return token;
}
WEFT_REGISTER_FUNCTION(hold_up);

void refuse(CallContext& call, uint64_t token) {
  executed(call, token);
  throw std::runtime_error("it was asked to throw");
}
WEFT_REGISTER_FUNCTION(refuse);

uint64_t relay(CallContext& call, uint64_t token, std::vector<uint64_t> path, uint32_t allowed_ms) {
  executed(call, token);
  if (path.empty()) return 1;
  const WorkerId next = WorkerId::from_bits(path.back());
  path.pop_back();
  const std::chrono::milliseconds allowed(allowed_ms);
  const Future<uint64_t> rest = tracked(Flavour::kCall, next, allowed, [&](uint64_t own) {
    return rpc_async(at_most(next, allowed), relay, own, std::move(path), allowed_ms);
  });
  return 1 + rest.wait();
}
WEFT_REGISTER_FUNCTION(relay);

// ---- References

Cell::Cell(uint64_t token) {
  const std::shared_ptr<CallContext>& call = CallScope::current().call_context;
  tracker().executed(token, call != nullptr ? call->caller() : WorkerId());
  cells_alive.fetch_add(1);
}
Cell::~Cell() {
  mark_.store(0);
  cells_alive.fetch_sub(1);
}

uint64_t Cell::read(CallContext& call, uint64_t token) const {
  executed(call, token);
  if (mark_.load() != kAlive) tracker().broken(Broken::kDeadObject, token);
  return token;
}

uint64_t Cell::alive() { return cells_alive.load(); }

void keep(CallContext& call, uint64_t token, RRef<Cell> cell) {
  executed(call, token);
  Shelf& here = shelf();
  MutexLock lock(here.mutex);
  std::swap(here.places[token % here.places.size()], cell);  // the old one dies after unlocking
}
WEFT_REGISTER_FUNCTION(keep);

Future<uint64_t> read_through(CallContext& call, uint64_t token, RRef<Cell> cell,
                              uint32_t allowed_ms) {
  executed(call, token);
  const std::chrono::milliseconds allowed(allowed_ms);
  return tracked(Flavour::kCall, cell.owner(), allowed, [&](uint64_t own) {
    return cell.with({.timeout = allowed}).rpc_async(&Cell::read, own);
  });
}
WEFT_REGISTER_FUNCTION(read_through);

void clear_shelf() {
  std::array<RRef<Cell>, 64> dropped;  // destroyed after unlocking
  Shelf& here = shelf();
  MutexLock lock(here.mutex);
  std::swap(here.places, dropped);
}

// ---- Gradients

at::Tensor scale(CallContext& call, uint64_t token, const at::Tensor& x, double factor) {
  executed(call, token);
  return x * factor;
}
WEFT_REGISTER_FUNCTION(scale);

at::Tensor scale_twice(CallContext& call, uint64_t token, const at::Tensor& x, double factor,
                       uint64_t next, double next_factor, uint32_t allowed_ms) {
  executed(call, token);
  const WorkerId to = WorkerId::from_bits(next);
  const std::chrono::milliseconds allowed(allowed_ms);
  Future<at::Tensor> rest = tracked(Flavour::kCall, to, allowed, [&](uint64_t own) {
    return rpc_async(at_most(to, allowed), scale, own, x * factor, next_factor);
  });
  return rest.wait();
}
WEFT_REGISTER_FUNCTION(scale_twice);

// ---- The counter

CounterModule::CounterModule() { value_ = register_parameter("value", at::zeros({kWidth})); }

at::Tensor CounterModule::forward(const at::Tensor& x) { return (value_ * x).sum(); }

HostedModule<CounterModule> find_counter(CallContext& call, uint64_t token) {
  executed(call, token);
  Counter& here = counter();
  MutexLock lock(here.mutex);  // making one does not wait
  if (!here.module) here.module.emplace(Destination(CallScope::current().runtime->id()));
  return *here.module;
}
WEFT_REGISTER_FUNCTION(find_counter);

std::optional<uint64_t> counted_steps() {
  std::optional<HostedModule<CounterModule>> module;
  {
    Counter& here = counter();
    MutexLock lock(here.mutex);
    module = here.module;
  }
  if (!module) return std::nullopt;
  const TensorMap state = module->state();
  return static_cast<uint64_t>(std::llround(-state.at("value")[0].item<double>()));
}

void drop_counter() {
  std::optional<HostedModule<CounterModule>> module;  // destroyed after unlocking
  Counter& here = counter();
  MutexLock lock(here.mutex);
  std::swap(here.module, module);
}

}  // namespace weft::chaos
