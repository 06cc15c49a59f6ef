// What lives on the parameter server: the classifier and the average of the trainers' own layers.
//
// A server offers both to the trainers as functions that give references: the objects are made for
// the first trainer that asks, and die with the last reference.
//
// Thread safety: everything may be called from any thread.
// Lifetime: what offer_server_objects adds belongs to the worker that joins with these options.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "weft/dist_optim/parameter_averager.h"
#include "weft/examples/parameter_server/model.h"
#include "weft/examples/parameter_server/trained_layers.h"
#include "weft/rref/rref.h"
#include "weft/worker/worker_options.h"

namespace weft::examples {

inline constexpr const char* kServerName = "ps";

// One trainer's step on the server's parameters, with the gradients of a context.
struct ServerStep {
  StepId step;
  WorkerId context_creator;
  uint64_t context_number = 0;
  double learning_rate = 0;
};
inline auto weft_fields(ServerStep& s) {
  return std::tie(s.step, s.context_creator.index, s.context_creator.incarnation, s.context_number,
                  s.learning_rate);
}

// The last layers. Each context reads one version of the weights, whatever other trainers do.
class Classifier {
 public:
  Classifier(uint64_t seed, double dropout);

  // Log-probabilities [batch, kClasses] of features [batch, kFeatures].
  at::Tensor forward(const at::Tensor& features);
  // Applied whole or, with an error, not at all. The context reads nothing here afterwards.
  void step(ServerStep step);
  // False: forward drops nothing out.
  void set_training(bool training);

  TensorMap state() const { return trained_.state(); }
  void load_state(const TensorMap& state) { trained_.load_state(state); }

 private:
  const std::shared_ptr<ClassifierLayers> training_;
  const std::shared_ptr<ClassifierLayers> evaluating_;  // its weights are not used
  std::atomic<bool> is_training_{true};
  TrainedLayers trained_;
};
WEFT_REGISTER_CLASS(Classifier, weft::constructor<uint64_t, double>(), &Classifier::forward,
                    &Classifier::step, &Classifier::set_training, &Classifier::state,
                    &Classifier::load_state);

// Rank 0 is "ps", rank n is "trainer<n>".
std::string worker_name(uint32_t rank);
std::vector<std::string> trainer_names(uint32_t world_size);

void offer_server_objects(WorkerOptions& options, uint64_t seed, double dropout);

// From a trainer.
RRef<Classifier> find_classifier(const Destination& server);
RRef<ParameterAverager> find_averager(const Destination& server);

}  // namespace weft::examples
