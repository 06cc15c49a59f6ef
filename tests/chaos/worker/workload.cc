#include "weft/tests/chaos/worker/workload.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include <ATen/ops/full.h>

#include "weft/base/rpc_error.h"
#include "weft/rpc/verbs.h"
#include "weft/rpc/worker_runtime.h"
#include "weft/tests/chaos/worker/functions.h"
#include "weft/tests/chaos/worker/workload_training.h"

namespace weft::chaos {
namespace {

// The number of open calls at which a caller waits before its next one.
constexpr size_t kMostOpen = 200;
constexpr std::chrono::seconds kCeaseBound{25};  // a step may take 45 s until the caller is told

}  // namespace

std::vector<WorkerId> live_members(const Worker& worker) {
  return static_cast<rpc_internal::WorkerRuntime&>(*worker.runtime()).agent().live();
}

Workload::Workload(const Worker& worker, Tracker& tracker, uint64_t seed, std::string folder)
    : worker_(worker), tracker_(tracker), seed_(seed), checkpoints_(std::move(folder), tracker) {}

Workload::~Workload() { cease(); }

void Workload::start() {
  using namespace std::chrono_literals;  // NOLINT: ms
  const auto add = [this](Milliseconds pause, Work work) {
    const uint64_t number = threads_.size();
    threads_.emplace_back([this, number, pause, work = std::move(work)] {
      const WorkerScope scope(worker_);
      loop(number, pause, work);
    });
  };
  add(12ms, [this](Dice& dice) { call_somebody(dice); });
  add(12ms, [this](Dice& dice) { call_somebody(dice); });
  add(20ms, [this](Dice& dice) { share_a_cell(dice); });
  add(60ms, [this](Dice& dice) { train(dice); });
  add(400ms, [this, resumed = std::make_shared<bool>(false)](Dice&) {
    if (!std::exchange(*resumed, true)) checkpoints_.resume();
    checkpoints_.save();
  });
}

void Workload::cease() {
  {
    MutexLock lock(mutex_);
    ceasing_ = true;
    changed_.notify_all();
  }
  const Watchdog::Scope bound(tracker_.watchdog(), "ceasing", kCeaseBound);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  {
    const WorkerScope scope(worker_);
    training_.reset();
  }
  tracker_.wait_for_all();
}

void Workload::loop(uint64_t number, Milliseconds pause, const Work& work) {
  Dice dice(seed_ * 0x9E3779B97F4A7C15ull + number);
  do {
    try {
      work(dice);
    } catch (const RpcError&) {
      // Entered where it was told.
    } catch (const std::exception& failed) {
      std::cerr << "chaos_worker: " << failed.what() << std::endl;  // no memory, no descriptor
    }
  } while (rest(Milliseconds(dice.between(0, static_cast<uint64_t>(pause.count())))));
}

bool Workload::rest(Milliseconds time) {
  const TimePoint end = std::chrono::steady_clock::now() + time;
  MutexLock lock(mutex_);
  while (!ceasing_ && std::chrono::steady_clock::now() < end) {
    (void)changed_.wait_until(mutex_, end);
  }
  return !ceasing_;
}

WorkerId Workload::somebody_else(Dice& dice) const {
  std::vector<WorkerId> members = live_members(worker_);
  std::erase(members, worker_.id());
  return members.empty() ? worker_.id() : dice.among(members);
}

WorkerId Workload::somebody(Dice& dice) const {
  return dice.one_in(10) ? worker_.id() : somebody_else(dice);
}

// ---- Calls

void Workload::call_somebody(Dice& dice) {
  const WorkerId to = somebody(dice);
  const Milliseconds timeout(dice.spread(50, 3000));
  const auto ms = static_cast<uint32_t>(timeout.count());
  switch (dice.between(0, 11)) {
    case 0: {
      std::vector<uint64_t> path;
      for (uint64_t hops = dice.between(1, 4); hops > 0; --hops) {
        path.push_back(somebody(dice).bits());
      }
      const uint64_t called = path.size() + 1;
      (void)tracked_and(
          Flavour::kCall, to, timeout,
          [&](uint64_t token) {
            return rpc_async(at_most(to, timeout), relay, token, std::move(path), ms);
          },
          [called](uint64_t answer) { return answer == called; });
      return;
    }
    case 1:
      (void)tracked(Flavour::kCall, to, timeout, [&](uint64_t token) {
        return rpc_async(at_most(to, timeout), answer_later, token,
                         static_cast<uint32_t>(dice.between(0, 2 * ms)));
      });
      return;
    case 2:
      call_and_cancel(dice, to);
      return;
    case 3:
      (void)tracked(Flavour::kCall, to, timeout,
                    [&](uint64_t token) { return rpc_async(at_most(to, timeout), refuse, token); });
      return;
    case 4:
      call_with_tensor(dice, to, timeout);
      return;
    default:
      call_with_bytes(dice, to, timeout);
  }
}

void Workload::call_with_bytes(Dice& dice, WorkerId to, Milliseconds timeout) {
  std::string bytes(dice.spread(16, dice.one_in(8) ? 64 << 10 : 1024), '\0');
  for (size_t i = 0; i < bytes.size(); i += 7) bytes[i] = static_cast<char>(dice.between(0, 255));
  const uint64_t sum = checksum(bytes);
  uint64_t own = 0;
  const Future<uint64_t> answer = tracked(Flavour::kCall, to, timeout, [&](uint64_t token) {
    own = token;
    return rpc_async(at_most(to, timeout), echo, token, sum, bytes);
  });
  if (dice.one_in(2) && tracker_.open_calls() < kMostOpen) return;
  const absl::StatusOr<uint64_t>& result = answer.result();
  if (result.ok() && *result != answer_of(own, sum)) tracker_.broken(Broken::kResult, own);
}

void Workload::call_with_tensor(Dice& dice, WorkerId to, Milliseconds timeout) {
  const auto numbers = static_cast<int64_t>(dice.spread(64, (8 << 20) / sizeof(int64_t)));
  uint64_t own = 0;
  const Future<at::Tensor> answer = tracked(Flavour::kCall, to, timeout, [&](uint64_t token) {
    own = token;
    const at::Tensor tensor = at::full({numbers}, static_cast<int64_t>(token), at::kLong);
    return rpc_async(at_most(to, timeout), echo_tensor, token, tensor);
  });
  const absl::StatusOr<at::Tensor>& result = answer.result();  // large results one at a time
  if (!result.ok()) return;
  const bool good =
      result->numel() == numbers && result->eq(static_cast<int64_t>(own)).all().item<bool>();
  if (!good) tracker_.broken(Broken::kResult, own);
}

void Workload::call_and_cancel(Dice& dice, WorkerId to) {
  const Milliseconds timeout(5000);
  const auto ms = static_cast<uint32_t>(dice.spread(1, 1000));
  const Future<uint64_t> answer = tracked(Flavour::kCall, to, timeout, [&](uint64_t token) {
    return rpc_async(at_most(to, timeout), hold_up, token, ms);
  });
  (void)answer.wait_for(Milliseconds(dice.between(1, 20)));
  answer.cancel();
}

// ---- References

void Workload::share_a_cell(Dice& dice) {
  const WorkerId owner = somebody(dice), third = somebody_else(dice);
  const Milliseconds timeout(dice.spread(200, 3000));
  const auto ms = static_cast<uint32_t>(timeout.count());
  RRef<Cell> cell;
  (void)tracked(Flavour::kCreate, owner, timeout, [&](uint64_t token) {
    cell = remote<Cell>(at_most(owner, timeout), token);
    return cell.creation();
  });
  if (dice.one_in(2)) {
    (void)tracked(Flavour::kCall, owner, timeout, [&](uint64_t token) {
      return cell.with({.timeout = timeout}).rpc_async(&Cell::read, token);
    });
  }
  // keep and read_through run at once, so that the first to drop the reference is not the last to
  // use it.
  if (dice.one_in(2)) {
    (void)tracked(Flavour::kCall, third, timeout, [&](uint64_t token) {
      return rpc_async(at_most(third, timeout), keep, token, cell);
    });
  }
  if (dice.one_in(2)) {
    (void)tracked(Flavour::kCall, third, timeout, [&](uint64_t token) {
      return rpc_async(at_most(third, timeout), read_through, token, cell, ms);
    });
  }
}

}  // namespace weft::chaos
