// Joins a process group, adds up the ranks in it and prints what it learned; for rendezvous_test.
//
//   join_group [method=env://] [rank=R] [size=N] [timeout=MS] [backend=weft] [name=default]
//              [die=R]: rank R kills itself in its first life, when it has joined
//              [again=1]: makes a second group of another name on the same store
// Ends with 3, and the error on standard output, if it could not.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "weft/comm/process_group.h"

namespace {

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

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> words;
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
