// Joins a process group, adds up the ranks in it and prints the results; for rendezvous_test.
//
//   join_group [method=env://] [rank=R] [size=N] [timeout=MS] [backend=weft] [name=default]
//
// With die=R, rank R kills itself after it has joined, in its first incarnation only. With again=1,
// the program makes a second group, with another name, on the same store.
//
// With stop=PID and port=PORT, it stops the process PID, which serves the store at PORT. It does so
// as soon as ranks 0 and 1 have registered. With ask=1 as well, it stops that process at once, and
// asks the store for the notice of rank 0.
//
// If something fails, it prints "ERROR" and the error on standard output and exits with 3.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "weft/comm/internal/store_notices.h"
#include "weft/comm/process_group.h"
#include "weft/store/job/c10d_store.h"
#include "weft/store/rendezvous.h"

namespace {

using Words = std::map<std::string, std::string>;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void use(const weft::ProcessGroupOptions& options) {
  const auto group = weft::init_process_group(options);
  const at::Tensor sum = at::full({3}, static_cast<double>(group->rank() + 1));
  group->all_reduce(sum);
  std::printf("rank %d of %d joined '%s' over %s, sum %d, life %s\n", group->rank(), group->size(),
              group->name().c_str(), group->backend()->getBackendName().c_str(), sum[2].item<int>(),
              variable("TORCHELASTIC_RESTART_COUNT").c_str());
  std::fflush(stdout);
  group->barrier();
}

c10::intrusive_ptr<c10d::Store> store_at(const std::string& port) {
  weft::RendezvousOptions options;
  options.port = static_cast<uint16_t>(std::stoi(port));
  auto store = weft::connect_rendezvous_store(options);
  if (!store.ok()) throw std::runtime_error(store.status().ToString());
  return c10::make_intrusive<weft::C10dStore>(*std::move(store), std::chrono::seconds(30));
}

void stop_once_two_have_come(Words& words) {
  std::thread([store = store_at(words["port"]), server = std::stoi(words["stop"])] {
    const std::string member = "weft/group/default/round/0/member/";
    store->wait({member + "0", member + "1"});
    ::kill(server, SIGSTOP);
  }).detach();
}

int ask_after_stop(Words& words, std::chrono::milliseconds timeout) {
  weft::comm_internal::StoreNotices notices(store_at(words["port"]));
  ::kill(std::stoi(words["stop"]), SIGSTOP);
  const auto text = notices.read(0, std::chrono::steady_clock::now() + timeout);
  std::printf("ERROR %s\n", text.status().ToString().c_str());
  std::fflush(stdout);
  return text.ok() ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  Words words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t sign = word.find('=');
    if (sign == std::string::npos) return 2;
    words[word.substr(0, sign)] = word.substr(sign + 1);
  }
  weft::ProcessGroupOptions options;
  options.timeout = std::chrono::seconds(30);
  if (words.count("method")) options.init_method = words["method"];
  if (words.count("rank")) options.rank = std::stoi(words["rank"]);
  if (words.count("size")) options.world_size = std::stoi(words["size"]);
  if (words.count("timeout"))
    options.timeout = std::chrono::milliseconds(std::stoi(words["timeout"]));
  if (words.count("backend")) options.backend = words["backend"];
  if (words.count("name")) options.name = words["name"];
  try {
    if (words.count("ask")) return ask_after_stop(words, options.timeout);
    if (words.count("stop")) stop_once_two_have_come(words);
    if (words.count("die")) {
      const auto group = weft::init_process_group(options);
      const bool first = variable("TORCHELASTIC_RESTART_COUNT") == "0";
      if (first && std::to_string(group->rank()) == words["die"]) std::raise(SIGKILL);
      group->barrier();
      std::printf("rank %d of %d met all in life %s\n", group->rank(), group->size(),
                  variable("TORCHELASTIC_RESTART_COUNT").c_str());
      return 0;
    }
    use(options);
    if (words.count("again")) {
      options.name = "second";
      use(options);
    }
  } catch (const c10::Error& failed) {
    std::printf("ERROR %s\n", failed.what_without_backtrace());
    std::fflush(stdout);
    return 3;
  }
  return 0;
}
