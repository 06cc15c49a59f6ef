// A log of the results of one trainer's steps, in a file that outlives the trainer. This file also
// has the parts of the job that write it. tools/train_under_kills.py reads it and checks that each
// step counts once.
//
//   incarnation,event,step,durable
//
// - `7,applied,41,40`: Step 41 was answered as applied, steps up to 40 as durable.
// - `9,resumed,40,`: The server, or this trainer, came back. The next step is 41.
// - `9,loaded,40,`: The server's parameters were then replaced by those of the job's checkpoint.
//
// Thread safety: belongs to one thread.
// Blocking: file I/O. When a method returns, its line is with the operating system, but not yet on
// the disk.
// Errors: RpcError naming the file.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/tests/examples/parameter_server/program.h"

namespace weft::testing {

class StepLedger {
 public:
  // Appends to folder/<trainer>.csv. An empty folder name means: write nothing.
  StepLedger(const std::string& folder, const std::string& trainer, uint64_t incarnation)
      : path_(folder.empty() ? "" : absl::StrCat(folder, "/", trainer, ".csv")),
        incarnation_(incarnation) {
    if (folder.empty()) return;
    std::error_code exists;
    std::filesystem::create_directories(folder, exists);
    file_.open(path_, std::ios::app);
    if (!file_) throw RpcError(absl::NotFoundError(absl::StrCat("cannot open ", path_)));
  }

  void applied(const StepResult& step) {
    write(absl::StrCat("applied,", step.number, ",", step.kept));
  }
  void resumed(uint64_t step) { write(absl::StrCat("resumed,", step, ",")); }
  void loaded(uint64_t step) { write(absl::StrCat("loaded,", step, ",")); }

 private:
  void write(const std::string& event) {
    if (path_.empty()) return;
    file_ << incarnation_ << ',' << event << std::endl;
    if (!file_) throw RpcError(absl::DataLossError(absl::StrCat("cannot write ", path_)));
  }

  const std::string path_;
  const uint64_t incarnation_;
  std::ofstream file_;
};

// The folder of the ledgers of this process. Set it before the trainers are made.
inline std::string ledger_folder;

// The example's trainer, with a ledger.
class LedgerTrainer : public examples::Trainer {
 public:
  LedgerTrainer(const Worker& worker, const examples::JobOptions& options)
      : Trainer(worker, options), ledger_(ledger_folder, worker.name(), worker.id().incarnation) {}

  examples::TrainerStep step(const examples::Batch& batch, double progress) {
    examples::TrainerStep done = Trainer::step(batch, progress);
    last_ = done.result.number;
    ledger_.applied(done.result);
    return done;
  }
  uint64_t resume() override {
    last_ = Trainer::resume();
    ledger_.resumed(last_);
    return last_;
  }
  void load_state(const examples::JobState& state) override {
    Trainer::load_state(state);
    ledger_.loaded(last_);
  }

 private:
  StepLedger ledger_;
  uint64_t last_ = 0;
};

// The example's server. At its end it says what saving itself has cost.
class CostServer : public examples::ServerObjects {
 public:
  using ServerObjects::ServerObjects;

  void clear() {
    if (const std::string text = cost(); !text.empty()) std::cerr << text << std::endl;
    ServerObjects::clear();
  }

 private:
  std::string cost() {
    MutexLock lock(mutex_);
    if (checkpointer_ == nullptr) return "";
    const Checkpointer::Cost cost = checkpointer_->cost();
    const auto ms = [](Nanoseconds time) {
      return std::chrono::duration<double, std::milli>(time).count();
    };
    const double each =
        1.0 / static_cast<double>(std::max<uint64_t>(1, cost.written + cost.failed));
    return absl::StrFormat(
        "the server saved itself %d times (%d failed): %.2f ms on disk each, while training "
        "waited %.2f ms for a copy, at most %.2f ms",
        cost.written, cost.failed, ms(cost.writing) * each, ms(cost.copying) * each,
        ms(cost.longest_copy));
  }
};

}  // namespace weft::testing
