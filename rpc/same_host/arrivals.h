// Accepts processes that open a connection to this worker, and reads their HELLO.
//
// A process that says nothing holds its place only until others need it: beyond `most` unanswered
// arrivals, a new one takes the place of the oldest without HELLO. If all have said HELLO, the new
// one is refused.
//
// Thread safety: all methods are called on the watcher's thread.
// Lifetime: the clock must outlive this object. The watcher must be stopped before this object is
// destroyed.
// Errors: if the system refuses a descriptor or memory, accepting pauses for 100 ms (AcceptLoop).
// Protocol: docs/data_plane.md, "Connections".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "weft/base/clock.h"
#include "weft/sockets/accept_loop.h"
#include "weft/sockets/local_socket.h"
#include "weft/sockets/watcher.h"

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

  void accept() { loop_.start(); }
  // Until the first call, those that have said HELLO wait.
  void answer();

 private:
  struct Waiting {
    LocalSocket socket;
    std::optional<LocalSocket::Message> hello;
  };

  absl::Status accept_one();
  bool make_room();
  void drop(uint64_t number);
  void receive_hello(uint64_t number);

  const std::shared_ptr<Watcher> watcher_;
  LocalListener listener_;
  const size_t most_;
  const std::function<void(Arrival)> answer_;
  bool answering_ = false;
  std::map<uint64_t, Waiting> waiting_;  // the oldest first
  uint64_t next_ = 1;
  AcceptLoop loop_;
};

}  // namespace weft::rpc_internal
