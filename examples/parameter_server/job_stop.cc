#include "weft/examples/parameter_server/job_stop.h"

#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

constexpr Function<bool()> kServerIsAsked{"parameter_server/is_asked_to_stop"};
constexpr Function<void()> kJobHasStopped{"parameter_server/job_has_stopped"};

}  // namespace

void JobStop::offer(WorkerOptions& server) {
  server.registry.add("parameter_server/is_asked_to_stop", [] { return stop_requested(); });
  server.registry.add("parameter_server/job_has_stopped", [this] { stopped_ = true; });
}

int JobStop::exit_code() const { return stopped_ ? kStoppedExitCode : 0; }

bool job_is_asked_to_stop(const Destination& server) {
  return stop_requested() || rpc_sync(server, kServerIsAsked);
}

void say_job_has_stopped(const Destination& server) { rpc_sync(server, kJobHasStopped); }

}  // namespace weft::examples
