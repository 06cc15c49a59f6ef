// A contestant's two processes as the driver sees them: start, run a block, stop.
//
// Thread safety: one thread at a time.
// Lifetime: the destructor ends both processes; they also end when the driver dies.
// Blocking: every method waits for the processes, at most kPatienceSeconds beyond the block's time.
// Errors: Unimplemented from run() means the contestant has no such row; after any other error the
// pair must be started again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/bench/channel.h"
#include "weft/bench/contestants/block.h"
#include "weft/bench/rows.h"

namespace weft::bench {

class Pair {
 public:
  virtual ~Pair() = default;
  virtual const std::string& name() const = 0;
  virtual bool spins_when_idle() const = 0;
  // Ends both processes if they run, and starts new ones.
  virtual absl::Status start() = 0;
  // Between pause() and resume() neither process runs.
  virtual void pause() = 0;
  virtual void resume() = 0;
  virtual absl::StatusOr<BlockResult> run(const Row& row, double seconds) = 0;
};

inline constexpr double kPatienceSeconds = 60;

class ProcessPair final : public Pair {
 public:
  struct Options {
    std::string name;
    bool spins_when_idle = false;
    bool pin = false;     // the client to processor 0, the server to processor 1
    std::string program;  // started as `program contestant --name NAME --role server|client ...`
    std::string child_name = {};  // NAME there; empty: `name`
  };

  explicit ProcessPair(Options options) : options_(std::move(options)) {}
  ~ProcessPair() override { stop(); }

  const std::string& name() const override { return options_.name; }
  bool spins_when_idle() const override { return options_.spins_when_idle; }
  absl::Status start() override;
  void pause() override;
  void resume() override;
  absl::StatusOr<BlockResult> run(const Row& row, double seconds) override;

 private:
  struct Process {
    pid_t id;
    Channel channel;
  };

  absl::StatusOr<Process> spawn(const std::string& role, int processor) const;
  absl::StatusOr<nlohmann::json> ask(Process& process, const nlohmann::json& command,
                                     double seconds = kPatienceSeconds) const;
  absl::StatusOr<Usage> server_usage();
  absl::Status wait_until_objects_are_gone();
  void signal_both(int signal);
  void stop();

  const Options options_;
  std::optional<Process> server_;
  std::optional<Process> client_;
};

// The socket that ProcessPair gives its children.
inline constexpr int kDriverSocket = 3;

}  // namespace weft::bench
