// Accepts connections at a listening socket whenever there are some.
//
// If `accept` returns an error other than DeadlineExceeded, the loop accepts nobody for 100 ms. The
// log says so at most once in 10 s. Meanwhile diallers wait in the kernel's queue. To close their
// connections would look like the death of this process.
//
// Thread safety: all methods, and `accept`, run on the watcher's thread.
// Lifetime: the clock must outlive this object. The watcher must be stopped before this object is
// destroyed and before the listening socket is closed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/sockets/watcher.h"

namespace weft {

class AcceptLoop {
 public:
  // Accepts one connection. DeadlineExceeded: nobody waits. Any other error: try again later.
  using Accept = std::function<absl::Status()>;

  // `what` names the connections in the log, such as "local connections".
  AcceptLoop(Clock& clock, std::shared_ptr<Watcher> watcher, int listening, std::string what,
             Accept accept);
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

  // Begins. Call it once.
  void start();

 private:
  void accept_some();
  void pause(const absl::Status& why);

  Clock& clock_;
  const std::shared_ptr<Watcher> watcher_;  // shared with the timer of a pause
  const int listening_;
  const std::string what_;
  const Accept accept_;
  std::optional<TimerId> pause_;  // nobody is accepted until this timer
  TimePoint next_warning_ = TimePoint::min();
};

}  // namespace weft
