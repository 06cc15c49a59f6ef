// Accepts processes that open a connection to this worker, and reads their HELLO.
//
// A process that says nothing holds its place only until others need it: beyond `most` unanswered
// arrivals, a new one takes the place of the oldest without HELLO. If all have said HELLO, the new
// one is refused.
//
// Thread safety: all methods are called on the watcher's thread.
// Lifetime: the clock must outlive this object. The watcher must be stopped before this object is
// destroyed.
// Errors: if the system refuses a descriptor or memory, nobody is accepted for 100 ms. The log says
// so.
// Protocol: docs/data_plane.md, "Connections".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "weft/base/clock.h"
#include "weft/shm/local_socket.h"
#include "weft/shm/watcher.h"

namespace weft::rpc_internal {

// A process that has said HELLO and waits for the answer.
struct Arrival {
  LocalSocket socket;
  LocalSocket::Message hello;
};

class Arrivals {
 public:
  // `answer` gets each arrival once.
  Arrivals(Clock& clock, std::shared_ptr<Watcher> watcher, LocalListener listener, size_t most,
           std::function<void(Arrival)> answer);
  ~Arrivals();

  void accept();
  // Until the first call, those that have said HELLO wait.
  void answer();

 private:
  struct Waiting {
    LocalSocket socket;
    std::optional<LocalSocket::Message> hello;
  };

  void accept_some();
  void pause(const absl::Status& why);
  bool make_room();
  void drop(uint64_t number);
  void receive_hello(uint64_t number);

  Clock& clock_;
  const std::shared_ptr<Watcher> watcher_;  // shared with the timer of a pause
  std::optional<LocalListener> listener_;
  const size_t most_;
  const std::function<void(Arrival)> answer_;
  bool answering_ = false;
  std::map<uint64_t, Waiting> waiting_;  // the oldest first
  uint64_t next_ = 1;
  std::optional<TimerId> pause_;  // nobody is accepted until this timer
};

}  // namespace weft::rpc_internal
