// One thread that waits for events of many descriptors (epoll) and for tasks of other threads.
//
// Thread safety: all methods may be called from any thread. Callbacks and tasks run on the
// watcher's thread, one at a time, and must not block.
// Lifetime: no callback runs after stop(), which must not be called on the watcher's thread. It
// destroys all callbacks, and tasks that have not run by then.
// Errors: start() returns ResourceExhausted if the system refuses a thread or a descriptor.
// Protocol: epoll(7), eventfd(2).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/sockets/file_descriptor.h"

namespace weft {

class Watcher {
 public:
  using Task = absl::AnyInvocable<void()>;

  ~Watcher() { stop(); }

  absl::Status start();
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs `task` soon. After stop(), it is destroyed instead.
  void post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  enum class Event { kReadable, kHungUp };
  // Only on the watcher's thread. Calls `ready` each time the descriptor can be read or its far end
  // has hung up, until unwatch(). The caller keeps the descriptor open until then. False: the
  // system has no memory for it.
  bool watch(int descriptor, Event event, std::function<void()> ready);
  void unwatch(int descriptor);

 private:
  void run() ABSL_LOCKS_EXCLUDED(mutex_);
  void notify();

  FileDescriptor epoll_;
  FileDescriptor wake_;  // an eventfd
  std::thread thread_;
  // Used only by the thread.
  // A number is never used again, because an event may be older than the descriptor that it names.
  uint64_t next_number_ = 1;
  std::map<int, uint64_t> numbers_;  // by descriptor
  // By number. Shared with run() while it calls one, which may call unwatch().
  std::map<uint64_t, std::shared_ptr<const std::function<void()>>> ready_;

  Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft
