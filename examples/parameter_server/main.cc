// One parameter server and N trainers learn Fashion-MNIST together.
//
//   tools/train.sh --trainers 2
//
// README.md says what the example shows, and in which file. The job prints its progress and at the
// end
//
//   test accuracy 0.9031 after 3 epochs, 3 workers, 61.2 s
#include <chrono>
#include <iostream>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/server.h"
#include "weft/examples/parameter_server/training_job.h"
#include "weft/examples/support/must.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace weft::examples {
namespace {

// Serves until all trainers have stopped. If the launcher restarts processes, all trainers may be
// dead at once and come back. So the server then waits for the job to finish, but not longer than
// kPatience without a live trainer.
void serve(Worker& worker, const JobOptions& job) {
  worker.serve();
  if (!job.server_keeps_itself()) return;
  must(worker.standing());
  constexpr auto kPatience = std::chrono::seconds(60);
  constexpr auto kLook = std::chrono::milliseconds(100);  // at the folder
  const MemberEvents events = worker.member_events();
  std::set<WorkerId> trainers;  // all that live
  auto seen = std::chrono::steady_clock::now();
  while (!TrainingJob::is_over(job) && std::chrono::steady_clock::now() - seen < kPatience) {
    if (const auto event = events.next(kLook)) {
      if (event->change == MemberChange::kJoined) {
        trainers.insert(event->worker.id);
      } else {
        trainers.erase(event->worker.id);
      }
    }
    must(worker.standing());  // a worker that was declared dead hears of no more members
    if (!trainers.empty()) seen = std::chrono::steady_clock::now();
  }
}

int run(int argc, char** argv) {
  JobCommandLine command = parse_job_options(argc, argv);
  if (!command.options) return command.print();
  JobOptions& job = *command.options;

  WorkerOptions options = WorkerOptions::from_env();
  if (options.place.world_size < 2) {
    throw RpcError(absl::InvalidArgumentError(
        "the job needs a server and at least one trainer, and WORLD_SIZE is 1; start it "
        "with tools/train.sh, or with weft_launch -n 3 -- parameter_server"));
  }
  options.name = worker_name(options.place.rank);
  job.run = options.place.run_id;
  const bool restarted = is_restart(options.place);
  if (restarted && TrainingJob::is_over(job)) return 0;
  const bool is_server = options.place.rank == 0;
  ServerObjects objects(job);
  if (is_server) objects.offer(options);
  Worker worker = Worker::join(std::move(options));
  if (is_server) {
    serve(worker, job);
    if (const std::string cost = objects.cost(); !cost.empty()) std::cerr << cost << std::endl;
    objects.clear();
    worker.shutdown();
    return 0;
  }
  SystemClock clock;
  std::optional<std::string> last_line;
  try {
    last_line = TrainingJob(worker, job, clock, restarted).run();
    worker.shutdown();
  } catch (const RpcError& error) {
    // All trainers write to one terminal, so the text names the trainer. Trainers call only the
    // server.
    const char* lost = error.code() == absl::StatusCode::kUnavailable ? "lost worker 'ps': " : "";
    throw RpcError(absl::Status(error.code(),
                                absl::StrCat(worker.name(), ": ", lost, error.status().message())));
  }
  if (last_line) std::cout << *last_line << std::endl;
  return 0;
}

}  // namespace
}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
