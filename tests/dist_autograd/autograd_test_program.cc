// One rank of the process tests of distributed autograd.
//
// It joins as its environment says, does what its first argument says, and prints the results.
//
// With "programs SEED COUNT", ranks 0 and 1 run COUNT random programs each, at the same time, over
// all ranks.
//
// With "orphan", the last rank kills itself in mid-pass, with contexts open on all other ranks.
// With "loss", the last rank kills itself in mid-pass of a context of rank 0.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/dist_autograd/random_program.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace {

using weft::dist_autograd::Context;

// Returns false after 30 s.
template <class Condition>
bool eventually(Condition condition) {
  const weft::Promise<void> never;
  for (int i = 0; i < 15000; ++i) {
    if (condition()) return true;
    (void)never.future().wait_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::atomic<int> told{0};
void tell() { ++told; }
WEFT_REGISTER_FUNCTION(tell);

void tell_all(const weft::Worker& worker) {
  for (const weft::WorkerInfo& peer : worker.workers()) weft::rpc_sync(peer.id, tell);
}

std::string left(const weft::Worker& worker) {
  const weft::DebugInfo info = worker.debug_info();
  return absl::StrCat(info.contexts, " contexts, ", info.passes, " passes, ", info.recorded_sends,
                      " sends");
}
bool holds_nothing(const weft::Worker& worker) {
  const weft::DebugInfo info = worker.debug_info();
  return info.contexts + info.passes + info.recorded_sends == 0;
}
// Waits until this worker holds nothing, or 30 s, and prints what is left.
bool ends_clean(weft::Worker& worker) {
  const bool clean = eventually([&] { return holds_nothing(worker); });
  std::cout << absl::StrCat(worker.name(), clean ? " holds nothing\n" : " holds ",
                            clean ? "" : left(worker), clean ? "" : "\n")
            << std::flush;
  worker.shutdown();
  return clean;
}

int programs(weft::Worker& worker, uint64_t seed, uint64_t count) {
  const weft::WorkerScope scope(worker);
  std::vector<std::string> names;
  for (const weft::WorkerInfo& peer : worker.workers()) names.push_back(peer.name);
  const bool trainer = worker.name() == names[0] || worker.name() == names[1];
  if (trainer) {
    weft::testing::Ingredients contents;
    seed = worker.name() == names[0] ? seed : seed * 31 + 7;
    for (uint64_t i = 0; i < count; ++i) {
      const std::string wrong = weft::testing::check_program(names, seed + i, contents);
      if (wrong.empty()) continue;
      std::cout << absl::StrCat("seed ", seed + i, " on ", worker.name(), ": ", wrong) << std::endl;
      return 1;
    }
    std::cout << contents.to_string() + "\n" << std::flush;
    tell_all(worker);
  }
  if (!eventually([] { return told == 2; })) return 2;  // both trainers
  return ends_clean(worker) ? 0 : 3;
}

// Adds a hook that kills the process of the worker that runs this function.
at::Tensor with_deadly_hook(const at::Tensor& x) {
  at::Tensor y = x.mul(2);
  y.register_hook([](const at::Tensor& gradient) {
    kill(getpid(), SIGKILL);
    return gradient;
  });
  return y;
}
WEFT_REGISTER_FUNCTION(with_deadly_hook);

// Brings the context to all other workers; each is called by the one before.
at::Tensor tour(const at::Tensor& x, std::vector<std::string> rest) {
  if (rest.empty()) return x.mul(3);
  const std::string next = rest.front();
  rest.erase(rest.begin());
  return weft::rpc_sync(next, tour, x.mul(2), rest);
}
WEFT_REGISTER_FUNCTION(tour);

at::Tensor leaf() { return at::ones({3}, at::kDouble).set_requires_grad(true); }

std::vector<std::string> others(const weft::Worker& worker) {
  std::vector<std::string> names;
  for (const weft::WorkerInfo& peer : worker.workers()) {
    if (peer.name != worker.name()) names.push_back(peer.name);
  }
  return names;
}
bool is_last(const weft::Worker& worker) { return worker.name() == worker.workers().back().name; }

int orphan(weft::Worker& worker) {
  if (!is_last(worker)) {
    if (!eventually([&] { return told == 1; })) return 2;
    return ends_clean(worker) ? 0 : 3;
  }
  const std::vector<std::string> path = others(worker);
  std::vector<std::thread> threads;  // each thread keeps a context open for ever
  std::atomic<int> open{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const Context context(worker.runtime());
      const at::Tensor y = weft::rpc_sync(path[0], tour, leaf(),
                                          std::vector<std::string>(path.begin() + 1, path.end()));
      ++open;
      while (true) pause();
    });
  }
  if (!eventually([&] { return open == 3; })) return 4;
  for (const std::string& other : path) weft::rpc_sync(other, tell);
  const Context context(worker.runtime());
  const at::Tensor x = with_deadly_hook(leaf());
  context.backward({weft::rpc_sync(path[0], tour, x, std::vector<std::string>()).sum()});
  return 5;
}

int loss(weft::Worker& worker) {
  if (is_last(worker)) {
    worker.serve();
    return 6;
  }
  const std::string victim = worker.workers().back().name;
  if (worker.name() == worker.workers().front().name) {
    const Context context(worker.runtime());
    at::Tensor x = leaf();
    for (const std::string& other : others(worker)) {
      if (other != victim) x = weft::rpc_sync(other, tour, x, std::vector<std::string>());
    }
    x = weft::rpc_sync(victim, with_deadly_hook, x);
    try {
      context.backward({x.sum()});
      return 7;
    } catch (const weft::RpcError& error) {
      std::cout << absl::StrCat(worker.name(), " heard: ", error.what(), "\n") << std::flush;
    }
    if (!context.gradients().empty()) return 8;
  }
  if (worker.name() == worker.workers().front().name) {
    for (const std::string& other : others(worker)) {
      if (other != victim) weft::rpc_sync(other, tell);
    }
  } else if (!eventually([] { return told == 1; })) {
    return 2;
  }
  return ends_clean(worker) ? 0 : 3;
}

int run(int argc, char** argv) {
  const std::string task = argc > 1 ? argv[1] : "";
  weft::WorkerOptions options = weft::WorkerOptions::from_env();
  options.shutdown_timeout = std::chrono::seconds(30);
  weft::Worker worker = weft::Worker::join(std::move(options));
  if (task == "programs" && argc > 3) {
    return programs(worker, std::strtoull(argv[2], nullptr, 10),
                    std::strtoull(argv[3], nullptr, 10));
  }
  if (task == "orphan") return orphan(worker);
  if (task == "loss") return loss(worker);
  return 9;
}

}  // namespace

int main(int argc, char** argv) { return weft::run_main(argc, argv, run); }
