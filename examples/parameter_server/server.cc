#include "weft/examples/parameter_server/server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"

namespace weft::examples {
namespace {

constexpr const char* kFindClassifier = "parameter_server/classifier";
constexpr const char* kFindAverager = "parameter_server/averager";
// How long a trainer may keep the others waiting, be it in an evaluation.
constexpr double kRoundSeconds = 120;

// Makes an object when it is first asked for, and gives the same one as long as it lives.
template <class T>
class Shared {
 public:
  template <class Make>
  std::shared_ptr<T> get(Make make) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    std::shared_ptr<T> object = object_.lock();
    if (object == nullptr) object_ = object = make();
    return object;
  }

 private:
  Mutex mutex_;
  std::weak_ptr<T> object_ ABSL_GUARDED_BY(mutex_);  // weak: it belongs to the trainers' references
};

}  // namespace

Classifier::Classifier(uint64_t seed, double dropout)
    : training_(std::make_shared<ClassifierLayers>(seed, dropout)),
      evaluating_(std::make_shared<ClassifierLayers>(seed, 0.0)),
      trained_(*training_) {}

at::Tensor Classifier::forward(const at::Tensor& features) {
  const std::vector<at::Tensor> weights =
      trained_.parameters().read(dist_autograd::current_context());
  return (is_training_ ? training_ : evaluating_)->forward_with(weights, features);
}

void Classifier::step(ServerStep step) {
  const ContextId context{step.context_creator, step.context_number};
  trained_.prepare(step.step, context);
  trained_.parameters().release(context);
  trained_.commit(step.step, step.learning_rate);
}

void Classifier::set_training(bool training) { is_training_ = training; }

std::string worker_name(uint32_t rank) {
  return rank == 0 ? kServerName : absl::StrCat("trainer", rank);
}

std::vector<std::string> trainer_names(uint32_t world_size) {
  std::vector<std::string> names;
  for (uint32_t rank = 1; rank < world_size; ++rank) names.push_back(worker_name(rank));
  return names;
}

void offer_server_objects(WorkerOptions& options, uint64_t seed, double dropout) {
  auto classifier = std::make_shared<Shared<Classifier>>();
  options.registry.add(kFindClassifier, [classifier, seed, dropout] {
    return classifier->get([&] { return std::make_shared<Classifier>(seed, dropout); });
  });
  auto averager = std::make_shared<Shared<ParameterAverager>>();
  options.registry.add(kFindAverager, [averager, names = trainer_names(options.place.world_size)] {
    return averager->get(
        [&] { return std::make_shared<ParameterAverager>(names, kRoundSeconds); });
  });
}

RRef<Classifier> find_classifier(const Destination& server) {
  return remote(server, Function<std::shared_ptr<Classifier>()>{kFindClassifier});
}

RRef<ParameterAverager> find_averager(const Destination& server) {
  return remote(server, Function<std::shared_ptr<ParameterAverager>()>{kFindAverager});
}

}  // namespace weft::examples
