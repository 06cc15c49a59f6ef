// The parameter-server example, with two additions for tests. `--ledger FOLDER`, as the first
// option, makes each trainer write down what it knows of its steps (step_ledger.h). At its end the
// server says what saving itself has cost. All other options are those of the example.
#include <string_view>
#include <vector>

#include "weft/tests/examples/parameter_server/step_ledger.h"

int main(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);
  if (argc > 2 && std::string_view(argv[1]) == "--ledger") {
    weft::testing::ledger_folder = argv[2];
    words.erase(words.begin() + 1, words.begin() + 3);
  }
  const int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  return weft::run_main(
      count, words.data(),
      weft::examples::run<weft::testing::CostServer, weft::testing::LedgerTrainer>);
}
