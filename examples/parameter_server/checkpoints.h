// The checkpoints of a job: one after each epoch, with the accuracy that the job had. A job that
// stops inside an epoch saves one more, without an accuracy.
//
// An epoch has one checkpoint and one accuracy, also if a process dies and the trainers do some of
// its steps again. A job is over when its last epoch is saved.
//
// Thread safety: belongs to one thread.
// Blocking: file I/O.
// Errors: RpcError with the codes of CheckpointFolder. Also AlreadyExists (the folder holds another
// run), InvalidArgument (the checkpoint does not fit the options), DataLoss (a shard is missing, or
// an entry is no number). The text names the folder.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/checkpoint/checkpoint.h"
#include "weft/examples/parameter_server/options.h"

namespace weft::examples {

// The weights of both halves of the model, and the optimizer's state of them.
struct JobState {
  TensorMap trainer;
  TensorMap server;
  TensorMap optimizer;
};

class JobCheckpoints {
 public:
  explicit JobCheckpoints(const JobOptions& options);

  // True if the folder holds checkpoints that this job has to clear. AlreadyExists: it may not.
  bool must_clear() const;
  void clear() const;

  bool empty() const;
  // Whether this run has saved its last epoch, with the accuracy.
  bool is_over() const;
  bool holds(int64_t step) const;
  // The accuracy that this run has saved with a step, or with the newest one.
  std::optional<double> accuracy(int64_t step) const;
  std::optional<double> last_accuracy() const;

  struct Moment {
    int64_t step = 0;      // steps of each trainer so far
    int64_t epoch = 0;     // finished epochs
    int64_t pictures = 0;  // that were dealt to all trainers in the epoch that runs
    JobState state;
  };
  void save(const Moment& moment, std::optional<double> accuracy, size_t workers) const;
  Moment load_newest() const;

 private:
  const JobOptions options_;
  const CheckpointFolder folder_;
};

}  // namespace weft::examples
