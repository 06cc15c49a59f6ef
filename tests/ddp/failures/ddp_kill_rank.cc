// Trains as one rank of a group until another rank dies; for ddp_kill_test.
//
//   ddp_kill_rank STORE_FILE RANK SIZE VICTIM TIMEOUT_MS
//
// The model is deep and has many buckets. In the third pass the victim prints "dies" in the middle
// of its backward, when some of its buckets are being reduced and others are not. Then it kills
// itself.
//
// The other ranks print "failed MILLISECONDS: ERROR"; the time counts from the begin of the pass.
// They make a group of the ranks that are left, train three more steps, and print "went on LOSS"
// with the loss of the last step.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/comm/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"

namespace weft {
namespace {

constexpr int kLayers = 8;
constexpr int kDiesAt = 3;  // the victim dies when this layer's gradient comes
constexpr int kDiesIn = 2;  // the step of the death

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    torch::manual_seed(5);
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(300, 300)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Deep);

int run(const std::string& file, int rank, int size, int victim,
        std::chrono::milliseconds timeout) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = size;
  options.store = c10::make_intrusive<c10d::FileStore>(file, size);
  options.timeout = timeout;
  const auto group = init_process_group(options);

  DdpOptions ddp_options;
  ddp_options.bucket_cap_mb = {0.3};
  Deep model;
  DistributedDataParallel ddp(model, group, ddp_options);
  torch::optim::SGD optimizer(ddp.parameters(), 0.01);
  int step = 0;
  if (rank == victim) {
    model->layers[kDiesAt]->weight.register_hook([&](const at::Tensor& gradient) {
      if (step == kDiesIn) {
        std::printf("dies\n");
        std::fflush(stdout);
        kill(getpid(), SIGKILL);
      }
      return gradient;
    });
  }
  const auto train = [&] {
    optimizer.zero_grad();
    const at::Tensor loss = ddp(torch::full({16, 300}, 0.1 * (rank + 1))).pow(2).mean();
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  };
  for (; step < kDiesIn; ++step) train();
  const auto begin = std::chrono::steady_clock::now();
  try {
    train();
    std::printf("nothing failed\n");
    return 3;
  } catch (const c10::DistBackendError& error) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begin);
    std::string text = error.what_without_backtrace();
    for (char& one : text) one = one == '\n' ? ' ' : one;
    std::printf("failed %lld: %s\n", static_cast<long long>(took.count()), text.c_str());
  }
  step = 0;
  std::vector<int> left;
  for (int one = 0; one < size; ++one) {
    if (one != victim) left.push_back(one);
  }
  ddp.update_process_group(group->new_group(left));
  double loss = 0;
  for (int more = 0; more < 3; ++more) loss = train();
  std::printf("went on %g\n", loss);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int count, char** words) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the kernel kills this process when ddp_kill_test dies
  if (count != 6) {
    std::fprintf(stderr, "usage: ddp_kill_rank STORE_FILE RANK SIZE VICTIM TIMEOUT_MS\n");
    return 1;
  }
  return weft::run(words[1], std::atoi(words[2]), std::atoi(words[3]), std::atoi(words[4]),
                   std::chrono::milliseconds(std::atoll(words[5])));
}
