#include "weft/examples/parameter_server/server.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/examples/support/must.h"
#include "weft/rpc/function.h"

namespace weft::examples {
namespace {

const Function<Classifier()> kFindClassifier{"parameter_server/classifier"};
const Function<RRef<ParameterAverager>()> kFindAverager{"parameter_server/averager"};
// The time for which one trainer may keep the others waiting, also while it evaluates.
constexpr double kRoundSeconds = 120;

}  // namespace

std::string worker_name(uint32_t rank) {
  return rank == 0 ? kServerName : absl::StrCat("trainer", rank);
}

std::vector<std::string> trainer_names(uint32_t world_size) {
  std::vector<std::string> names;
  for (uint32_t rank = 1; rank < world_size; ++rank) names.push_back(worker_name(rank));
  return names;
}

bool is_restart(const LaunchEnvironment& place) { return place.restart_count > place.group_epoch; }

// Handlers run with the server as the current worker, so the objects that they make live there.
void ServerObjects::offer(WorkerOptions& worker) {
  // A restarted server loads what it has saved. The first server of a run clears the folder.
  if (options_.server_keeps_itself() && !is_restart(worker.place)) {
    std::filesystem::remove_all(options_.server_folder());
  }
  worker.registry.add("parameter_server/classifier", [this] {
    MutexLock lock(mutex_);
    if (!classifier_) make_classifier();
    return *classifier_;
  });
  worker.registry.add("parameter_server/averager",
                      [this, names = trainer_names(worker.place.world_size)] {
                        MutexLock lock(mutex_);
                        if (!averager_) {
                          averager_ = remote<ParameterAverager>(kServerName, names, kRoundSeconds);
                        }
                        return averager_;
                      });
}

void ServerObjects::make_classifier() {
  Classifier classifier(kServerName, options_.seed, options_.dropout);
  if (options_.server_keeps_itself()) {
    CheckpointerOptions how{.folder = options_.server_folder()};
    if (options_.checkpoint_every > 0) how.every = static_cast<uint64_t>(options_.checkpoint_every);
    if (options_.every_step_durable) how.durability = Durability::kEveryStep;
    const RRef<ParameterSet>& parameters = classifier.parameters();
    checkpointer_ = must(Checkpointer::open(parameters.local_value().shared_from_this(), how));
  }
  classifier_ = std::move(classifier);
}

std::string ServerObjects::cost() const {
  MutexLock lock(mutex_);
  if (checkpointer_ == nullptr) return "";
  const Checkpointer::Cost cost = checkpointer_->cost();
  const auto ms = [](Nanoseconds time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  const double each = 1.0 / static_cast<double>(std::max<uint64_t>(1, cost.written + cost.failed));
  return absl::StrFormat(
      "the server saved itself %d times (%d failed): %.2f ms on disk each, while training waited "
      "%.2f ms for a copy, at most %.2f ms",
      cost.written, cost.failed, ms(cost.writing) * each, ms(cost.copying) * each,
      ms(cost.longest_copy));
}

void ServerObjects::clear() {
  MutexLock lock(mutex_);
  checkpointer_.reset();
  classifier_.reset();
  averager_ = {};
}

Classifier find_classifier(const Destination& server) { return rpc_sync(server, kFindClassifier); }

RRef<ParameterAverager> find_averager(const Destination& server) {
  return rpc_sync(server, kFindAverager);
}

}  // namespace weft::examples
