#include "weft/bench/contestants/rank.h"

namespace weft::bench {

absl::Status Rank::all_reduce() { return absl::UnimplementedError("no collectives"); }
absl::Status Rank::meet() { return absl::UnimplementedError("no barrier"); }
absl::Status Rank::local_step() { return absl::UnimplementedError("no training steps"); }
absl::Status Rank::ddp_step() { return absl::UnimplementedError("no training steps"); }
absl::Status Rank::call_others() { return absl::UnimplementedError("no calls"); }

}  // namespace weft::bench
