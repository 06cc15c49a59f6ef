#include "weft/examples/parameter_server/step_ledger.h"

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"

namespace weft::examples {

StepLedger::StepLedger(const std::string& folder, const std::string& trainer, uint64_t incarnation)
    : path_(folder.empty() ? "" : absl::StrCat(folder, "/", trainer, ".csv")),
      incarnation_(incarnation) {
  if (folder.empty()) return;
  std::error_code exists;
  std::filesystem::create_directories(folder, exists);
  file_.open(path_, std::ios::app);
  if (!file_) throw RpcError(absl::NotFoundError(absl::StrCat("cannot open ", path_)));
}

void StepLedger::applied(const StepResult& step) {
  write(absl::StrCat("applied,", step.number, ",", step.kept));
}
void StepLedger::resumed(uint64_t step) { write(absl::StrCat("resumed,", step, ",")); }
void StepLedger::loaded(uint64_t step) { write(absl::StrCat("loaded,", step, ",")); }

void StepLedger::write(const std::string& event) {
  if (path_.empty()) return;
  file_ << incarnation_ << ',' << event << std::endl;
  if (!file_) throw RpcError(absl::DataLossError(absl::StrCat("cannot write ", path_)));
}

}  // namespace weft::examples
