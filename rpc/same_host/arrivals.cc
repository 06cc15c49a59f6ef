#include "weft/rpc/same_host/arrivals.h"

#include <utility>

#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

constexpr LocalSocket::TimePoint kWithoutWaiting = LocalSocket::TimePoint::min();

}  // namespace

Arrivals::Arrivals(Clock& clock, std::shared_ptr<Watcher> watcher, LocalListener listener,
                   size_t most, std::function<void(Arrival)> answer)
    : watcher_(std::move(watcher)),
      listener_(std::move(listener)),
      most_(most),
      answer_(std::move(answer)),
      loop_(clock, watcher_, listener_.descriptor(), "local connections",
            [this] { return accept_one(); }) {}

absl::Status Arrivals::accept_one() {
  WEFT_ASSIGN_OR_RETURN(LocalSocket socket, listener_.accept(kWithoutWaiting));
  if (!make_room()) return absl::OkStatus();
  const uint64_t number = next_++;
  const int descriptor = socket.descriptor();
  waiting_.emplace(number, Waiting{std::move(socket), {}});
  if (!watcher_->watch(descriptor, Watcher::Event::kReadable,
                       [this, number] { receive_hello(number); })) {
    waiting_.erase(number);
    return absl::OkStatus();
  }
  receive_hello(number);  // usually it is there, and then no silent process can push this one out
  return absl::OkStatus();
}

bool Arrivals::make_room() {
  if (waiting_.size() < most_) return true;
  for (const auto& [number, waiting] : waiting_) {
    if (waiting.hello.has_value()) continue;
    drop(number);
    return true;
  }
  return false;
}

void Arrivals::drop(uint64_t number) {
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return;
  watcher_->unwatch(found->second.socket.descriptor());
  waiting_.erase(found);
}

void Arrivals::receive_hello(uint64_t number) {
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return;
  Waiting& waiting = found->second;
  absl::StatusOr<LocalSocket::Message> message = waiting.socket.receive(kWithoutWaiting);
  if (absl::IsDeadlineExceeded(message.status())) return;
  if (!message.ok()) return drop(number);  // it has gone
  const int descriptor = waiting.socket.descriptor();
  watcher_->unwatch(descriptor);
  waiting.hello = *std::move(message);
  if (answering_) return answer();
  // A dialler that gives up makes room for its next attempt.
  if (!watcher_->watch(descriptor, Watcher::Event::kHungUp, [this, number] { drop(number); })) {
    drop(number);
  }
}

void Arrivals::answer() {
  answering_ = true;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto each = next++;
    if (!each->second.hello.has_value()) continue;
    watcher_->unwatch(each->second.socket.descriptor());
    answer_({std::move(each->second.socket), *std::move(each->second.hello)});
    waiting_.erase(each);
  }
}

}  // namespace weft::rpc_internal
