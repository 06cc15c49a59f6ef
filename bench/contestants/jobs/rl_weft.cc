// Weft's example of an agent and its observers (examples/rl_agent_observers), over gRPC on
// loopback.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/rpc/weft_crowd.h"
#include "weft/examples/rl_agent_observers/agent.h"
#include "weft/examples/rl_agent_observers/observer.h"

namespace weft::bench {
namespace {

using examples::Agent;
using examples::CallShape;
using examples::Observer;
using Seconds = std::chrono::duration<double>;

constexpr double kWarmUpShare = 0.2;
constexpr int64_t kTrialSteps = 8;
constexpr uint64_t kSeed = 543;

struct Kind {
  CallShape shape;
  int64_t environments;
};
std::optional<Kind> kind_of(Work work) {
  switch (work) {
    case Work::kTwoCalls:
      return Kind{CallShape::kTwoCalls, 1};
    case Work::kOneCall:
      return Kind{CallShape::kOneCall, 1};
    case Work::kBatched1:
      return Kind{CallShape::kBatched, 1};
    case Work::kBatched16:
      return Kind{CallShape::kBatched, 16};
    default:
      return std::nullopt;
  }
}

WorkerOptions options_of_rank(int rank) {
  WorkerOptions options;
  options.name = rank == 0 ? "agent" : absl::StrCat("observer", rank - 1);
  return options;
}

class WeftLeader final : public Leader {
 public:
  absl::StatusOr<std::string> listen() override { return door_.listen(); }
  absl::Status join(const std::string& /*address*/, int members) override {
    return door_.join(members);
  }

  absl::StatusOr<BlockResult> run(const Row& row, int64_t amount, double seconds) override {
    const int members = static_cast<int>(amount);
    const std::optional<Kind> kind = kind_of(row.work);
    if (!kind) return absl::UnimplementedError("no row of an agent");
    Job& job = job_of(row.work, *kind, members);
    // After SIGSTOP the first run must find the peers again. The last trial then tells how many
    // steps fill the block.
    double per_step = 0;
    WEFT_ASSIGN_OR_RETURN(const BlockResult first, run_steps(job, *kind, members, 1));
    int64_t tried = first.calls;
    for (int64_t steps = kTrialSteps;; steps *= 2) {
      WEFT_ASSIGN_OR_RETURN(const BlockResult trial, run_steps(job, *kind, members, steps));
      per_step = trial.seconds / static_cast<double>(steps);
      tried += trial.calls;
      if (trial.seconds >= kWarmUpShare * seconds) break;
    }
    const auto steps = std::max<int64_t>(2, static_cast<int64_t>(seconds / per_step));
    WEFT_ASSIGN_OR_RETURN(BlockResult result, run_steps(job, *kind, members, steps));
    result.all_calls += tried;
    return result;
  }

  void close() override {
    jobs_.clear();
    door_.close();
  }

 private:
  // The agent continues to learn from block to block.
  struct Job {
    RRef<Agent> agent;
    std::vector<RRef<Observer>> observers;
  };

  Job& job_of(Work work, const Kind& kind, int members) {
    if (!jobs_.contains(work)) jobs_.clear();  // frees the objects of other rows
    Job& job = jobs_[work];
    if (job.observers.empty())
      job.agent = make_rref(std::make_shared<Agent>(examples::AgentOptions{}));
    while (static_cast<int>(job.observers.size()) < members) {
      const auto next = static_cast<int64_t>(job.observers.size());
      job.observers.push_back(remote<Observer>(absl::StrCat("observer", next),
                                               next * kind.environments, kind.environments, kSeed));
    }
    return job;
  }

  absl::StatusOr<BlockResult> run_steps(const Job& job, const Kind& kind, int members,
                                        int64_t steps) {
    const Agent& agent = job.agent.local_value();
    const BatchStats before = agent.batches();
    const Agent::Choices chosen_before = agent.choices();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Future<at::Tensor>> running;
    for (int i = 0; i < members; ++i) {
      running.push_back(job.observers[static_cast<size_t>(i)]
                            .with({.timeout = absl::InfiniteDuration()})
                            .rpc_async(&Observer::run, job.agent, kind.shape, steps));
    }
    std::vector<at::Tensor> waits;
    for (const auto& one : running) {
      if (!one.result().ok()) return one.result().status();
      waits.push_back(*one.result());
    }
    BlockResult result;
    result.seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
    result.calls = steps * members * kind.environments;
    result.all_calls = result.calls;
    const at::Tensor all = torch::cat(waits);
    if (all.numel() != steps * members) return absl::DataLossError("steps are missing");
    result.median_us = all.median().item<double>();
    result.p99_us =
        std::get<0>(all.kthvalue(std::max<int64_t>(1, all.numel() * 99 / 100))).item<double>();
    const Agent::Choices chosen = agent.choices();
    const auto count = static_cast<double>(chosen.count - chosen_before.count);
    result.agent_us = Seconds(chosen.time - chosen_before.time).count() * 1e6 / count;
    result.agent_rate = count / result.seconds;
    const BatchStats after = agent.batches();
    if (after.batches > before.batches) {
      result.mean_batch = static_cast<double>(after.calls - before.calls) /
                          static_cast<double>(after.batches - before.batches);
    }
    return result;
  }

  CrowdDoor door_{options_of_rank};
  std::map<Work, Job> jobs_;
};

}  // namespace

CrowdContestant weft_rl() {
  return {"weft", &rl_rows(), [] { return std::make_unique<WeftLeader>(); },
          [] { return serving_member(options_of_rank); }};
}

}  // namespace weft::bench
