// What lives on the parameter server: the classifier and the average of the trainers' own layers.
//
// Both are made for the first trainer that asks; every trainer gets a reference to the same ones.
// With --checkpoint-every or --durable every-step the classifier is saved while it is trained; a
// server that is started again in the same job comes back with what was saved last.
//
// Thread safety: everything may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/mutex.h"
#include "weft/dist_optim/checkpointer.h"
#include "weft/dist_optim/hosted_module.h"
#include "weft/dist_optim/parameter_averager.h"
#include "weft/examples/parameter_server/model.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/rref/rref.h"
#include "weft/worker/worker_options.h"

namespace weft::examples {

inline constexpr const char* kServerName = "ps";

using Classifier = HostedModule<ClassifierLayers>;
WEFT_REGISTER_MODULE(ClassifierLayers, uint64_t, double);

// Rank 0 is "ps", rank n is "trainer<n>".
std::string worker_name(uint32_t rank);
std::vector<std::string> trainer_names(uint32_t world_size);

// A process that the launcher has started again in a job that goes on.
bool is_restart(const LaunchEnvironment& place);

// What the server gives to every trainer that asks.
class ServerObjects {
 public:
  explicit ServerObjects(const JobOptions& options) : options_(options) {}

  // Before the server joins. This object must outlive its worker.
  void offer(WorkerOptions& worker);
  // Before it shuts down: nothing is held any more.
  void clear() ABSL_LOCKS_EXCLUDED(mutex_);
  // What being durable has cost; empty if nothing was saved.
  std::string cost() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void make_classifier() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobOptions options_;
  mutable Mutex mutex_;
  std::optional<Classifier> classifier_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Checkpointer> checkpointer_ ABSL_GUARDED_BY(mutex_);
  RRef<ParameterAverager> averager_ ABSL_GUARDED_BY(mutex_);
};

// From a trainer.
Classifier find_classifier(const Destination& server);
RRef<ParameterAverager> find_averager(const Destination& server);

}  // namespace weft::examples
