// The functions that chaos workers call on each other. Every function first records its token as
// executed.
//
// Thread safety: everything may be called from any thread.
// Lifetime: the tracker is set before the worker joins and outlives it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "weft/dist_optim/hosted_module.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rref/rref.h"
#include "weft/tests/chaos/worker/tracker.h"

namespace weft::chaos {

void set_tracker(Tracker* tracker);
Tracker& tracker();

// A checksum of sent bytes, and the answer that a call must give.
uint64_t checksum(std::string_view bytes);
uint64_t answer_of(uint64_t token, uint64_t sum);

Destination at_most(WorkerId to, std::chrono::milliseconds timeout);

// Starts a call under a token of its own and records its result. `start(token)` returns its future.
// `check` gets the value.
template <class Start, class Check>
auto tracked_and(Flavour flavour, WorkerId whom, std::chrono::milliseconds allowed, Start start,
                 Check check) -> decltype(start(uint64_t{})) {
  const uint64_t token = tracker().call(flavour, whom, allowed);
  try {
    auto future = start(token);
    tracker().follow(token, future, check);
    return future;
  } catch (const RpcError& refused) {
    tracker().told(token, refused.status());
    throw;
  } catch (const std::exception& failed) {  // no memory: the call may have been sent
    tracker().told(token, absl::UnknownError(failed.what()));
    throw;
  }
}
template <class Start>
auto tracked(Flavour flavour, WorkerId whom, std::chrono::milliseconds allowed, Start start)
    -> decltype(start(uint64_t{})) {
  return tracked_and(flavour, whom, allowed, std::move(start), nullptr);
}

// ---- Calls

uint64_t echo(CallContext& call, uint64_t token, uint64_t sum, const std::string& bytes);
// Takes int64 elements that are all equal to the token.
at::Tensor echo_tensor(CallContext& call, uint64_t token, const at::Tensor& tensor);
// Answers after `ms`; it does not keep its thread meanwhile.
Future<uint64_t> answer_later(CallContext& call, uint64_t token, uint32_t ms);
// Answers after `ms` and keeps its thread. It gives up when no caller waits any more.
uint64_t hold_up(CallContext& call, uint64_t token, uint32_t ms);
void refuse(CallContext& call, uint64_t token);
// Calls the last worker of `path` (bits of WorkerIds) to do the same with the rest. Returns how
// many were called.
uint64_t relay(CallContext& call, uint64_t token, std::vector<uint64_t> path, uint32_t allowed_ms);

// ---- References

class Cell {
 public:
  explicit Cell(uint64_t token);
  ~Cell();
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  uint64_t read(CallContext& call, uint64_t token) const;

  static uint64_t alive();

 private:
  static constexpr uint64_t kAlive = 0xA11CE11DA11CE11Dull;
  std::atomic<uint64_t> mark_{kAlive};
};
WEFT_REGISTER_CLASS(Cell, weft::constructor<uint64_t>(), &Cell::read);

// Puts the reference on this worker's shelf, where it stays until another one replaces it.
void keep(CallContext& call, uint64_t token, RRef<Cell> cell);
Future<uint64_t> read_through(CallContext& call, uint64_t token, RRef<Cell> cell,
                              uint32_t allowed_ms);
void clear_shelf();

// ---- Gradients

at::Tensor scale(CallContext& call, uint64_t token, const at::Tensor& x, double factor);
at::Tensor scale_twice(CallContext& call, uint64_t token, const at::Tensor& x, double factor,
                       uint64_t next, double next_factor, uint32_t allowed_ms);

// ---- A parameter server that counts the steps it has seen

class CounterModule : public torch::nn::Module {
 public:
  static constexpr int64_t kWidth = 4;
  CounterModule();
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor value_;  // falls by 1 with each step of rate 1
};
WEFT_REGISTER_MODULE(CounterModule);

// Returns this worker's counter, which the first caller makes.
HostedModule<CounterModule> find_counter(CallContext& call, uint64_t token);
// The steps that the counter has seen. Nullopt if no worker has asked for the counter.
std::optional<uint64_t> counted_steps();
void drop_counter();

}  // namespace weft::chaos
