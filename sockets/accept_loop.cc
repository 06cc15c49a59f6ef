#include "weft/sockets/accept_loop.h"

#include <utility>

#include "weft/base/log.h"

namespace weft {
namespace {

constexpr int kMostAtOnce = 64;  // accepted before other descriptors have their turn
constexpr Nanoseconds kPause = std::chrono::milliseconds(100);
constexpr Nanoseconds kBetweenWarnings = std::chrono::seconds(10);

}  // namespace

AcceptLoop::AcceptLoop(Clock& clock, std::shared_ptr<Watcher> watcher, int listening,
                       std::string what, Accept accept)
    : clock_(clock),
      watcher_(std::move(watcher)),
      listening_(listening),
      what_(std::move(what)),
      accept_(std::move(accept)) {}

AcceptLoop::~AcceptLoop() {
  if (pause_.has_value()) clock_.cancel(*pause_);
}

void AcceptLoop::start() {
  pause_.reset();
  if (!watcher_->watch(listening_, Watcher::Event::kReadable, [this] { accept_some(); })) {
    return pause(absl::ResourceExhaustedError("no memory to watch for them"));
  }
  accept_some();  // `accept` may have one that it could not take before
}

void AcceptLoop::accept_some() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    const absl::Status accepted = accept_();
    if (absl::IsDeadlineExceeded(accepted)) return;
    if (!accepted.ok()) return pause(accepted);
  }
}

// The socket stays readable, so without a pause the watcher would try again at once, for ever.
void AcceptLoop::pause(const absl::Status& why) {
  if (clock_.now() >= next_warning_) {
    next_warning_ = clock_.now() + kBetweenWarnings;
    log_warning(what_, " wait to be accepted: ", why.message());
  }
  watcher_->unwatch(listening_);
  pause_ = clock_.call_at(clock_.now() + kPause,
                          [this, watcher = watcher_] { watcher->post([this] { start(); }); });
}

}  // namespace weft
