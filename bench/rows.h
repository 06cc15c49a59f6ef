// The rows of the comparisons: what one operation is, and in which unit its speed is told.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::bench {

enum class Work {
  kAdd,           // add two 2x2 tensors over there, one call at a time
  kAddInFlight,   // the same with `amount` calls in flight
  kSend,          // a tensor of `amount` bytes there, a small reply
  kEcho,          // a tensor of `amount` bytes there and a tensor of that size back
  kAutograd,      // context, remote add, sum, backward, gradients checked, release
  kRref,          // create a value over there, fetch it, drop it
  kAddAfterIdle,  // the first add after a pause of the whole contestant
  kAllReduce,     // `amount` bytes of float32 summed over all ranks, in place
  kDdpStep,       // what a training step with DDP takes longer than the same step without
  // An agent chooses actions for `amount` observers while it learns; counted are the steps of their
  // environments. In two calls each, in one, in one together with other observers', and that with
  // 16 environments for each observer. Without an amount: as many observers as are fastest.
  kTwoCalls,
  kOneCall,
  kBatched1,
  kBatched16,
};

struct Row {
  std::string name;
  Work work = Work::kAdd;
  int64_t amount = 0;  // bytes, calls in flight, or observers
  std::string unit;    // "us" (lower is better), "calls/s", "steps/s" or "GB/s" (higher is better)
  int processes = 2;   // of one contestant: client and server, or the ranks

  bool lower_is_better() const { return unit == "us"; }
};

inline constexpr int kMostObservers = 64;

const std::vector<Row>& rpc_rows();
const std::vector<Row>& ddp_rows();  // those of equally many ranks stand together
const std::vector<Row>& rl_rows();   // the best of a kind stands after its others

// The rows with these names, in the order of `all`; all of them when `names` is empty.
// InvalidArgument names the unknown row and lists those that exist.
absl::StatusOr<std::vector<Row>> select_rows(const std::vector<Row>& all,
                                             const std::vector<std::string>& names);

}  // namespace weft::bench
