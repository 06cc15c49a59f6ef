// weft_pipeline; see command.h.
#include <iostream>

#include "weft/pipeline/command/command.h"

int main(int argc, char** argv) {
  return weft::pipeline_internal::run_command(argc, argv, std::cout, std::cerr);
}
