// Tracks the pass of a reducer: which gradients of a pass have arrived, which buckets are full, and
// what may be reduced now. Pure: no tensor, no thread, no communication.
//
// A pass is begin, then arrived for each gradient until all buckets are given out, then finished.
// Buckets are given out in the order of their index, in whatever order they fill. So all ranks
// reduce the same buckets together.
//
// Without options, the gradient of every parameter arrives once. With find_unused, begin() gets the
// parameters that the graph does not reach. They count as arrived with the first gradient. With
// static_graph, the first pass only counts how often each gradient arrives, and its buckets are
// given out at its end. From then on a gradient is complete when it has arrived that often.
//
// Thread safety: none.
// Errors: FailedPrecondition, which names parameters. The core then stays as it was.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/ddp/reducer/bucket_assignment.h"

namespace weft::ddp_internal {

class ReducerCore {
 public:
  struct Options {
    bool find_unused = false;
    bool static_graph = false;
    // A gradient arrives complete, once in a pass. So the first pass of a static graph reduces its
    // buckets as they fill too, and needs to know the unused parameters.
    bool whole_gradients = false;
  };
  // The reducer's next actions, in this order.
  struct Actions {
    std::vector<size_t> write;   // parameters whose gradients must go into their buckets now
    std::vector<size_t> reduce;  // buckets to reduce
    bool last = false;           // after these, all buckets of the pass are given out
  };

  ReducerCore(std::vector<std::string> names, Options options);

  // Call it between passes.
  void set_buckets(Buckets buckets);
  const Buckets& buckets() const { return buckets_; }

  // A pass begins whose gradients are to be reduced. It will not reach the parameters in `unused`.
  // FailedPrecondition: the previous pass is not complete; the text names the parameters whose
  // gradients are missing.
  absl::Status begin(std::vector<size_t> unused);
  // A gradient has arrived. Outside a pass it only accumulates, and its parameter counts as used.
  // `used` is false if there is no gradient. FailedPrecondition: it arrived more often than
  // allowed.
  absl::StatusOr<Actions> arrived(size_t parameter, bool used = true);
  // The end of the first pass of a static graph, in which nothing was given out before.
  bool reduces_at_end() const { return counts_only() && in_pass_; }
  Actions at_end();
  // All that was given out is reduced, and the pass is over.
  void finished();
  // The pass that began will not run. Gradients only accumulate until the next begin().
  void cancel() { in_pass_ = false; }
  // The other ranks had a pass, and this rank took part without gradients. Afterwards it knows what
  // they know: that their first pass of a static graph is over, and that buckets may be built
  // again. In a static graph this rank still has to count in a first pass of its own.
  void shadowed();
  // Gives up the pass, and what was counted in it.
  void reset();
  // As reset, for use with the first buckets (set_buckets). The buckets may be built again.
  void start_over();

  bool in_pass() const { return in_pass_; }
  bool begun() const { return !arrival_.empty(); }  // a gradient of the pass has arrived
  // Whether the parameter got a gradient since the last finished pass, in a pass or outside.
  bool used(size_t parameter) const { return used_[parameter]; }
  bool needs_unused() const {
    return options_.find_unused || (options_.whole_gradients && static_first_);
  }
  // Whether ranks must tell each other which parameters they used in this pass.
  bool shares_used() const {
    return (options_.find_unused && !options_.static_graph) || shares_first_;
  }
  // The same, for a pass of the other ranks that this rank shadows.
  bool others_share_used() const {
    return (options_.find_unused && !options_.static_graph) || (static_first_ && !others_counted_);
  }

  // The order in which gradients of the previous pass arrived, without parameters that got none.
  const std::vector<size_t>& order_before() const { return order_before_; }
  // All parameters in the order in which they were ready, once a pass has shown it. Empty before
  // that, and if the buckets are not to be built again.
  std::vector<size_t> order_to_build() const;
  void built_again() { may_build_ = false; }

  // The names of the parameters that are not ready in this pass.
  std::vector<std::string> missing() const;

 private:
  enum class State : uint8_t { kAwaited, kReady };

  bool counts() const { return options_.static_graph && !options_.whole_gradients; }
  bool counts_only() const { return static_first_ && counts(); }
  void ready(size_t parameter, Actions& actions);
  void give_out(Actions& actions);
  bool builds_order() const {
    return may_build_ && (options_.static_graph || !options_.find_unused);
  }

  const std::vector<std::string> names_;
  Options options_;
  Buckets buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<State> state_;
  std::vector<size_t> left_in_;  // by bucket: parameters that are not ready
  size_t next_ = 0;              // the next bucket to give out
  bool in_pass_ = false;
  bool marked_unused_ = false;
  std::vector<size_t> unused_;
  std::vector<bool> used_;

  bool static_first_ = false;    // the first pass of a static graph is not complete
  bool others_counted_ = false;  // but that of the other ranks is
  bool shares_first_ = false;
  std::vector<size_t> counted_;  // static graph: how often each gradient arrives
  std::vector<size_t> to_come_;  // static graph: how often it still has to arrive in this pass

  bool may_build_ = true;
  std::vector<size_t> order_;         // of this pass, by ready
  std::vector<size_t> order_before_;  // of the previous pass
  std::vector<size_t> arrival_;       // of this pass, by first gradient
};

}  // namespace weft::ddp_internal
