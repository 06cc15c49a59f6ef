// A contestant of two processes: a client that calls and a server that answers.
//
// Thread safety, lifetime, blocking and errors: those of Group.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "weft/bench/processes/child_process.h"
#include "weft/bench/processes/group.h"

namespace weft::bench {

class ProcessPair final : public Group {
 public:
  struct Options {
    std::string name;
    bool spins_when_idle = false;
    bool pin = false;     // the client to processor 0, the server to processor 1
    std::string program;  // started as `program contestant --name NAME --role server|client ...`
    std::string child_name = {};  // NAME in that command; empty: `name`
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
  absl::StatusOr<ChildProcess> spawn(const std::string& role, int processor) const;
  absl::StatusOr<Usage> server_usage();
  absl::Status wait_until_objects_are_gone();
  void signal_both(int signal);
  void stop();

  const Options options_;
  std::optional<ChildProcess> server_;
  std::optional<ChildProcess> client_;
};

}  // namespace weft::bench
