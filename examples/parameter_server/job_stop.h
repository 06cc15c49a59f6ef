// Stops all processes of a job when one of them gets SIGTERM.
//
// The trainers agree in a round of averages. Before each round a trainer finds out whether its own
// process or the server was asked to stop, and the round tells it to all trainers. When they have
// saved, they tell the server, so that it has the same exit code.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <atomic>

#include "weft/rpc/destination.h"
#include "weft/worker/worker_options.h"

namespace weft::examples {

// The server's part.
class JobStop {
 public:
  // Call it before the server joins. This object must outlive the worker.
  void offer(WorkerOptions& server);
  // True if the trainers have said that the job has stopped before its end.
  bool stopped() const { return stopped_; }
  int exit_code() const;

 private:
  std::atomic<bool> stopped_{false};
};

// The trainers' part. Both may call the server, and fail with the RpcError of that call.
bool job_is_asked_to_stop(const Destination& server);
void say_job_has_stopped(const Destination& server);

}  // namespace weft::examples
