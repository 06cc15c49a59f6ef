// One rank of the process tests: joins as its environment says, does what its first argument says,
// and prints what it saw.
//   ring             calls every other rank, nests calls both ways, shuts down
//   victim RANK      that rank kills itself with SIGKILL while all others call it
//   join             joins and shuts down; WEFT_TEST_NAME and WEFT_TEST_WORLD replace name and size
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace {

int64_t plus_one(int64_t value) { return value + 1; }
WEFT_REGISTER_FUNCTION(plus_one);

// Goes back and forth between two workers; every call waits for the next.
int64_t bounce(const std::string& here, const std::string& there, int64_t depth);
WEFT_REGISTER_FUNCTION(bounce);
int64_t bounce(const std::string& here, const std::string& there, int64_t depth) {
  return depth == 0 ? 0 : 1 + weft::rpc_sync(there, bounce, there, here, depth - 1);
}

void die() { kill(getpid(), SIGKILL); }
WEFT_REGISTER_FUNCTION(die);

int ring(weft::Worker& worker) {
  for (const weft::WorkerInfo& peer : worker.workers()) {
    if (weft::rpc_sync(peer.id, plus_one, 41) != 42) return 2;
    if (weft::rpc_sync(peer.id, bounce, peer.name, worker.name(), 16) != 16) return 3;
  }
  worker.shutdown();
  std::cout << worker.name() << " called " << worker.workers().size() << std::endl;
  return 0;
}

int lose(weft::Worker& worker, const std::string& victim) {
  if (worker.name() == victim) {
    worker.serve();  // until it is killed
    return 4;
  }
  try {
    weft::rpc_sync(victim, die);
  } catch (const weft::RpcError& error) {
    std::cout << worker.name() << " heard: " << error.what() << std::endl;
    worker.shutdown();
    std::cout << worker.name() << " ended" << std::endl;
    return 0;
  }
  return 5;
}

int run(int argc, char** argv) {
  const std::string task = argc > 1 ? argv[1] : "";
  weft::WorkerOptions options = weft::WorkerOptions::from_env();
  options.shutdown_timeout = std::chrono::seconds(30);
  if (const char* name = std::getenv("WEFT_TEST_NAME")) options.name = name;
  const char* size = std::getenv("WEFT_TEST_WORLD");
  if (size != nullptr && options.place.rank == 1) options.place.world_size = std::stoi(size);
  if (task == "join") options.join_timeout = absl::Seconds(3);
  if (task == "absent" && options.place.rank == 1) return 0;
  if (task == "absent") options.join_timeout = absl::Milliseconds(500);
  weft::Worker worker = weft::Worker::join(std::move(options));
  if (task == "ring") return ring(worker);
  if (task == "victim" && argc > 2) return lose(worker, absl::StrCat("worker", argv[2]));
  worker.shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return weft::run_main(argc, argv, run); }
