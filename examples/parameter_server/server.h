// What lives on the parameter server: the classifier and the average of the trainers' own layers.
//
// A server offers both to the trainers as functions that give references: the objects are made for
// the first trainer that asks, and die with the last reference.
//
// Thread safety: all functions may be called from any thread.
// Lifetime: what offer_server_objects adds belongs to the worker that joins with these options.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/dist_optim/hosted_module.h"
#include "weft/dist_optim/parameter_averager.h"
#include "weft/examples/parameter_server/model.h"
#include "weft/rref/rref.h"
#include "weft/worker/worker_options.h"

namespace weft::examples {

inline constexpr const char* kServerName = "ps";
using Classifier = HostedModule<ClassifierLayers>;

// Rank 0 is "ps", rank n is "trainer<n>".
std::string worker_name(uint32_t rank);
std::vector<std::string> trainer_names(uint32_t world_size);

void offer_server_objects(WorkerOptions& options, uint64_t seed, double dropout);

// From a trainer.
RRef<Classifier> find_classifier(const Destination& server);
RRef<ParameterAverager> find_averager(const Destination& server);

}  // namespace weft::examples
