// The bookkeeping of a reducer: which gradients of a pass have come, which buckets are full, what
// may be reduced now. Pure: no tensor, no thread, no communication.
//
// A pass goes begin -> arrived ... -> (all buckets given out) -> finished. Buckets are given out in
// the order of their index, whatever order they fill in: so all ranks reduce the same ones
// together.
//
// Modes. Plain: every parameter's gradient comes once. find_unused: begin() gets those that the
// graph does not reach; they count as arrived with the first gradient. static_graph: the first pass
// only counts how often each gradient comes, and its buckets are given out at its end; from then on
// a gradient has arrived when it has come that often.
//
// Thread safety: none. Errors: FailedPrecondition naming parameters; the core then stays as it was.
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
    // A gradient comes once in a pass, whole: also the first pass of a static graph reduces as its
    // buckets fill, and needs to be told the unused ones.
    bool whole_gradients = false;
  };
  // What to do, in this order.
  struct Actions {
    std::vector<size_t> write;   // parameters whose gradients go into their buckets now
    std::vector<size_t> reduce;  // buckets
    bool last = false;           // all buckets of the pass are given out with these
  };

  ReducerCore(std::vector<std::string> names, Options options);

  // Between passes.
  void set_buckets(Buckets buckets);
  const Buckets& buckets() const { return buckets_; }

  // A pass whose gradients are to be reduced begins; `unused` are those that it will not reach.
  // FailedPrecondition: the pass before has not ended, naming what did not come.
  absl::Status begin(std::vector<size_t> unused);
  // A gradient has come. Outside a pass (it accumulates) it only counts as used.
  // FailedPrecondition: it came more often than it may.
  absl::StatusOr<Actions> arrived(size_t parameter, bool used = true);
  // The end of the first pass of a static graph, in which nothing was given out.
  bool reduces_at_end() const { return counts_only() && in_pass_; }
  Actions at_end();
  // What was given out is reduced; the pass is over.
  void finished();
  // The pass that began will not run: gradients only accumulate until the next begin().
  void cancel() { in_pass_ = false; }
  // The others had a pass, in which this rank took part without gradients: what they know from it,
  // this rank takes to be so; what it counts in a static graph it still has to count.
  void shadowed();
  // Gives the pass up, and what was counted with it.
  void reset();
  // As reset, and the buckets are the first ones again (set_buckets): they may be built once more.
  void start_over();

  bool in_pass() const { return in_pass_; }
  bool begun() const { return !arrival_.empty(); }  // a gradient of the pass has come
  // Gradients that have come, or are known not to come, since the last finished pass.
  bool used(size_t parameter) const { return used_[parameter]; }
  bool needs_unused() const {
    return options_.find_unused || (options_.whole_gradients && static_first_);
  }
  // Whether ranks must tell each other which parameters they used in this pass.
  bool shares_used() const {
    return (options_.find_unused && !options_.static_graph) || shares_first_;
  }
  // The same of a pass of the others that this rank shadows.
  bool others_share_used() const {
    return (options_.find_unused && !options_.static_graph) || (static_first_ && !others_counted_);
  }

  // The order in which gradients of the pass before came; parameters that never came are missing.
  const std::vector<size_t>& order_before() const { return order_before_; }
  // All parameters in the order in which they were ready, once a pass told; empty before, and if
  // buckets are not to be built again (any more).
  std::vector<size_t> order_to_build() const;
  void built_again() { may_build_ = false; }

  // Names of parameters of the pass that have not come.
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
  std::vector<size_t> left_in_;  // by bucket
  size_t next_ = 0;              // the bucket to give out next
  bool in_pass_ = false;
  bool marked_unused_ = false;
  std::vector<size_t> unused_;
  std::vector<bool> used_;

  bool static_first_ = false;    // the first pass of a static graph has not ended
  bool others_counted_ = false;  // but that of the other ranks has
  bool shares_first_ = false;
  std::vector<size_t> counted_;  // static graph: how often each gradient comes
  std::vector<size_t> to_come_;  // static graph: how often it still comes in this pass

  bool may_build_ = true;
  std::vector<size_t> order_;         // of this pass, by ready
  std::vector<size_t> order_before_;  // of the last pass
  std::vector<size_t> arrival_;       // of this pass, by first gradient
};

}  // namespace weft::ddp_internal
