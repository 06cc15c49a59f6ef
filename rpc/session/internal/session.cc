#include "weft/rpc/session/internal/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/breakage.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"

namespace weft::rpc_internal {
namespace {

// Smaller replies are always retained, because the error that replaces them takes as much memory.
constexpr size_t kSmallReply = size_t{4} << 10;

bool is_large_result(const Frame& frame) {
  return frame.header.kind == FrameKind::kReply && (frame.header.flags & kFlagError) == 0 &&
         frame.cost() > kSmallReply;
}

// Makes the error that replaces a result. References that the result carries stay in the meta, so
// that the receiver releases them.
FramePtr fact_of(const Frame& result, size_t bound) {
  Frame fact;
  fact.header = result.header;
  fact.header.flags |= kFlagError;
  fact.header.value_bytes = 0;
  wire::Meta meta;
  if (!result.meta.empty()) meta.ParseFromString(result.meta);
  meta.clear_autograd();
  encode_status(
      with_ran(absl::DataLossError(absl::StrCat(
                   "executed, result lost: the connection ended, and of ", result.cost(),
                   " bytes more than the ", bound, " that are kept for resending were under way")),
               WEFT_BREAK(lost_result_says_not_run) ? Ran::kNo : Ran::kYes),
      *meta.mutable_status());
  fact.meta = meta.SerializeAsString();
  return std::make_shared<const Frame>(std::move(fact));
}

}  // namespace

FramePtr SessionCore::number(Frame frame) {
  frame.header.sequence = next_++;
  frame.header.acknowledged = watermark_;
  const size_t cost = frame.cost();
  FramePtr numbered = std::make_shared<const Frame>(std::move(frame));
  retained_bytes_ += cost;
  if (numbered->header.kind == FrameKind::kCall) call_bytes_ += cost;
  retained_.push_back(numbered);
  if (is_large_result(*numbered)) {
    results_.push_back(numbered->header.sequence);
    result_bytes_ += cost;
    forget_results();
  }
  return numbered;
}

void SessionCore::forget_results() {
  while (result_bytes_ > max_result_bytes_) {
    FramePtr& frame = retained(results_.front());
    results_.pop_front();
    result_bytes_ -= frame->cost();
    retained_bytes_ -= frame->cost();
    frame = fact_of(*frame, max_result_bytes_);
    retained_bytes_ += frame->cost();
  }
}

bool SessionCore::accept(uint64_t sequence) {
  if (sequence <= watermark_) return WEFT_BREAK(duplicates_accepted);
  if (sequence == watermark_ + 1) {
    ++watermark_;
    while (!WEFT_BREAK(gap_never_closes) && !beyond_.empty() &&
           *beyond_.begin() == watermark_ + 1) {
      beyond_.erase(beyond_.begin());
      ++watermark_;
    }
    return true;
  }
  if (WEFT_BREAK(gap_acknowledged)) watermark_ = sequence;
  return beyond_.insert(sequence).second;
}

bool SessionCore::on_acknowledged(uint64_t sequence) {
  if (sequence >= next_) return false;
  const uint64_t last = sequence + (WEFT_BREAK(unacknowledged_forgotten) ? 1 : 0);
  while (!retained_.empty() && retained_.front()->header.sequence <= last) {
    const Frame& frame = *retained_.front();
    retained_bytes_ -= frame.cost();
    if (frame.header.kind == FrameKind::kCall) call_bytes_ -= frame.cost();
    if (!results_.empty() && results_.front() == frame.header.sequence) {
      result_bytes_ -= frame.cost();
      results_.pop_front();
    }
    released_.push_back(std::move(retained_.front()));
    retained_.pop_front();
  }
  return true;
}

void SessionCore::retain_nothing() {
  for (FramePtr& frame : retained_) released_.push_back(std::move(frame));
  retained_.clear();
  retained_bytes_ = 0;
  results_.clear();
  result_bytes_ = 0;
  call_bytes_ = 0;
}

}  // namespace weft::rpc_internal
