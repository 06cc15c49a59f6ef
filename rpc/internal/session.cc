#include "weft/rpc/internal/session.h"

#include <utility>

namespace weft::internal {

FramePtr SessionCore::number(Frame frame) {
  frame.header.sequence = next_++;
  frame.header.acknowledged = watermark_;
  retained_bytes_ += frame.cost();
  retained_.push_back(std::make_shared<const Frame>(std::move(frame)));
  return retained_.back();
}

bool SessionCore::accept(uint64_t sequence) {
  if (sequence <= watermark_) return false;
  if (sequence == watermark_ + 1) {
    ++watermark_;
    while (!beyond_.empty() && *beyond_.begin() == watermark_ + 1) {
      beyond_.erase(beyond_.begin());
      ++watermark_;
    }
    return true;
  }
  return beyond_.insert(sequence).second;
}

bool SessionCore::on_acknowledged(uint64_t sequence) {
  if (sequence >= next_) return false;
  while (!retained_.empty() && retained_.front()->header.sequence <= sequence) {
    retained_bytes_ -= retained_.front()->cost();
    retained_.pop_front();
  }
  return true;
}

}  // namespace weft::internal
