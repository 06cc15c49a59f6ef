// The objects on the parameter server: the classifier, and the averager of the trainers' own
// layers.
//
// The server makes both when the first trainer asks. Every trainer gets a reference to the same
// ones. With --checkpoint-every or --durable every-step the server saves the classifier while it is
// trained. A server that is restarted in the same job comes back with what was saved last.
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

// True for a process that the launcher has restarted in a running job.
bool is_restart(const LaunchEnvironment& place);

// Makes the classifier and the averager, and gives them to every trainer that asks.
class ServerObjects {
 public:
  explicit ServerObjects(const JobOptions& options) : options_(options) {}

  // Call it before the server joins. This object must outlive its worker.
  void offer(WorkerOptions& worker);
  // Call it before the server shuts down: it releases all objects.
  void clear() ABSL_LOCKS_EXCLUDED(mutex_);
  // Says what saving has cost. Empty if nothing was saved.
  std::string cost() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void make_classifier() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobOptions options_;
  mutable Mutex mutex_;
  std::optional<Classifier> classifier_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Checkpointer> checkpointer_ ABSL_GUARDED_BY(mutex_);
  RRef<ParameterAverager> averager_ ABSL_GUARDED_BY(mutex_);
};

// For trainers: get references to the server's objects.
Classifier find_classifier(const Destination& server);
RRef<ParameterAverager> find_averager(const Destination& server);

}  // namespace weft::examples
