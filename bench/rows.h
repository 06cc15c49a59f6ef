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
  // A training step of ResNet50 in two shards on two workers, in `amount` micro-batches; counted
  // are pictures. Without an amount: in as many as are fastest.
  kPipeline,
};

struct Row {
  std::string name;
  Work work = Work::kAdd;
  int64_t amount = 0;  // bytes, calls in flight, observers, or micro-batches
  // "us" (lower is better), "calls/s", "steps/s", "pictures/s" or "GB/s" (higher is better)
  std::string unit;
  int processes = 2;  // of one contestant: client and server, or the ranks

  bool lower_is_better() const { return unit == "us"; }
};

inline constexpr int kMostObservers = 64;
inline constexpr int kPipelineShards = 2;
inline constexpr int64_t kPipelineBatch = 120;  // pictures of one step
inline constexpr int64_t kPipelineSize = 128;   // their width and height
inline constexpr int kPipelineWarmUps = 3;  // steps of each row that are not measured: heaps grow
inline constexpr int64_t kPipelineClasses = 1000;

const std::vector<Row>& rpc_rows();
const std::vector<Row>& ddp_rows();  // those of equally many ranks stand together
// The best of a kind stands after its others.
const std::vector<Row>& rl_rows();
const std::vector<Row>& pipeline_rows();

// The rows with these names, in the order of `all`; all of them when `names` is empty.
// InvalidArgument names the unknown row and lists those that exist.
absl::StatusOr<std::vector<Row>> select_rows(const std::vector<Row>& all,
                                             const std::vector<std::string>& names);

}  // namespace weft::bench
