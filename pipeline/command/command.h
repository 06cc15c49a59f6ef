// The command weft_pipeline: makes or reads a schedule, checks it, and prints its price and a
// drawing of it.
//
//   weft_pipeline --schedule zero_bubble --workers 2 --micro-batches 6
//   weft_pipeline --file list.csv --times 1,1,0.8
//
// Thread safety: a free function.
// Errors: returns 2 for a wrong command line, 1 for a schedule that cannot be made, read or run;
// the reason is in `errors`.
#pragma once

#include <ostream>

namespace weft::pipeline_internal {

int run_command(int argc, const char* const* argv, std::ostream& out, std::ostream& errors);

}  // namespace weft::pipeline_internal
