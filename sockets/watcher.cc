#include "weft/sockets/watcher.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/thread.h"

namespace weft {
namespace {

constexpr uint64_t kTasks = 0;  // the eventfd's number in epoll's events

}  // namespace

absl::Status Watcher::start() {
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kTasks}};
  if (!epoll_.valid() || !wake_.valid() ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot watch sockets: ", std::strerror(errno)));
  }
  absl::StatusOr<std::thread> thread = start_thread("the socket watch", [this] { run(); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

void Watcher::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    notify();
    thread_.join();
  }
  numbers_.clear();
  ready_.clear();
  std::deque<Task> unrun;  // destroyed outside the lock
  MutexLock lock(mutex_);
  unrun.swap(tasks_);
}

void Watcher::post(Task task) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  notify();
}

void Watcher::notify() {
  const uint64_t one = 1;
  // It fails only if the count would overflow, and then the thread wakes anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

bool Watcher::watch(int descriptor, Event event, std::function<void()> ready) {
  epoll_event wanted = {
      .events = event == Event::kReadable ? EPOLLIN | EPOLLRDHUP : uint32_t{EPOLLRDHUP},
      .data = {.u64 = next_number_}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &wanted) != 0) return false;
  numbers_[descriptor] = next_number_;
  ready_[next_number_++] = std::make_shared<const std::function<void()>>(std::move(ready));
  return true;
}

void Watcher::unwatch(int descriptor) {
  const auto found = numbers_.find(descriptor);
  if (found == numbers_.end()) return;
  ready_.erase(found->second);
  numbers_.erase(found);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

void Watcher::run() {
  std::array<epoll_event, 64> events;
  bool more = false;  // tasks wait
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), more ? 0 : -1);
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[i].data.u64;  // a copy, because epoll_event is packed
      if (number == kTasks) {
        uint64_t ignored = 0;
        [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &ignored, sizeof(ignored));
        continue;
      }
      // An earlier callback of this round may have stopped to watch it.
      const auto found = ready_.find(number);
      if (found == ready_.end()) continue;
      const auto ready = found->second;  // it may call unwatch()
      (*ready)();
    }
    // One task at a time: a worker that dials many peers at once also answers those that dial it.
    Task task;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      more = !tasks_.empty();
    }
    if (task) task();
  }
}

}  // namespace weft
