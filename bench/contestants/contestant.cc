#include "weft/bench/contestants/contestant.h"

namespace weft::bench {
namespace {

absl::Status no_such_operation() { return absl::UnimplementedError("no such operation"); }

}  // namespace

absl::Status Client::add() { return no_such_operation(); }
absl::Status Client::start_add(int) { return no_such_operation(); }
absl::Status Client::finish_add(int) { return no_such_operation(); }
absl::Status Client::send(int64_t) { return no_such_operation(); }
absl::Status Client::give(int64_t) { return no_such_operation(); }
absl::Status Client::echo(int64_t) { return no_such_operation(); }
absl::Status Client::autograd_round(int, int) { return no_such_operation(); }
absl::Status Client::rref_life() { return no_such_operation(); }

}  // namespace weft::bench
