// The rows of the comparisons: each defines one operation and the unit of its speed.
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
  kAdd,            // add two 2x2 tensors on the server, one call at a time
  kAddInFlight,    // the same with `amount` calls in flight
  kSend,           // send a tensor of `amount` bytes, get a small reply
  kEcho,           // send a tensor of `amount` bytes, get one of that size back
  kGive,           // like kSend, but the caller gives the tensor away; small calls in between
  kMixed,          // small calls while tensors of `amount` bytes stream the same way
  kAutograd,       // context, remote add, sum, backward, gradients checked, release
  kAutogradDepth,  // the same with `amount` remote adds, one after the other (kAutograd has one)
  kAutogradWidth,  // the same with `amount` remote adds at the same time
  kRref,           // create a value on the server, fetch it, drop it
  kAddAfterIdle,   // the first add after a pause of the whole contestant
  kAllReduce,      // `amount` bytes of float32 summed over all ranks, in place
  kDdpStep,        // by how much DDP makes a training step longer
  // Each of `processes` workers makes rounds of kAllToAllCalls calls, in turn to every other one.
  kAllToAllAdd,   // small calls, all of a round in flight
  kAllToAllSend,  // tensors of `amount` bytes, kAllToAllTensors in flight
  // An agent chooses actions for `amount` observers while it learns. The steps of their
  // environments are counted. Each observer makes two calls per step (kTwoCalls), or one
  // (kOneCall), or one that is batched with those of other observers (kBatched1). With kBatched16
  // each observer also has 16 environments. Without an amount, the fastest number of observers is
  // used.
  kTwoCalls,
  kOneCall,
  kBatched1,
  kBatched16,
  // A training step of ResNet50 in two shards on two workers, in `amount` micro-batches. Pictures
  // are counted. Without an amount, the fastest number of micro-batches is used.
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

inline constexpr int kMostWorkers = 64;
inline constexpr int kAllToAllCalls = 64;   // of one worker in one round
inline constexpr int kAllToAllTensors = 4;  // of one worker in flight
inline constexpr int kMostObservers = 64;
inline constexpr int kPipelineShards = 2;
inline constexpr int64_t kPipelineBatch = 120;  // pictures per step
inline constexpr int64_t kPipelineSize = 128;   // their width and height
inline constexpr int kPipelineWarmUps = 3;      // unmeasured steps of each row: heaps grow
inline constexpr int64_t kPipelineClasses = 1000;

const std::vector<Row>& rpc_rows();
// Those that show what encryption costs.
const std::vector<Row>& security_rows();
// Rows of 2 workers (one peer each), of 8, 32 and 64 if they are fewer than `workers`, and of
// `workers`. Rows with equal numbers are adjacent.
std::vector<Row> worker_rows(int workers);
const std::vector<Row>& ddp_rows();  // rows with equal numbers of ranks are adjacent
// The row without an amount follows the other rows of its kind.
const std::vector<Row>& rl_rows();
const std::vector<Row>& pipeline_rows();

// Returns the rows with these names, in the order of `all`, or all rows if `names` is empty.
// InvalidArgument names the unknown row and lists the existing ones.
absl::StatusOr<std::vector<Row>> select_rows(const std::vector<Row>& all,
                                             const std::vector<std::string>& names);

}  // namespace weft::bench
