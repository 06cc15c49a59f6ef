#include "weft/examples/parameter_server/server.h"

#include "absl/strings/str_cat.h"
#include "weft/rpc/function.h"

namespace weft::examples {
namespace {

const Function<Classifier()> kFindClassifier{"parameter_server/classifier"};
const Function<RRef<ParameterAverager>()> kFindAverager{"parameter_server/averager"};
// How long a trainer may keep the others waiting, be it in an evaluation.
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

// Handlers run with the server as the current worker: what they make lives there. They hold the
// lock for a moment only, for neither `remote` nor making a HostedModule waits.
void ServerObjects::offer(WorkerOptions& worker) {
  worker.registry.add("parameter_server/classifier", [this] {
    MutexLock lock(mutex_);
    if (!classifier_) {
      classifier_.emplace(kServerName, options_.seed, options_.dropout);
    }
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

void ServerObjects::clear() {
  MutexLock lock(mutex_);
  classifier_.reset();
  averager_ = {};
}

Classifier find_classifier(const Destination& server) { return rpc_sync(server, kFindClassifier); }

RRef<ParameterAverager> find_averager(const Destination& server) {
  return rpc_sync(server, kFindAverager);
}

}  // namespace weft::examples
