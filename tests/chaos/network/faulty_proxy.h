// A TCP proxy in front of one worker that delays, truncates, swallows and damages traffic.
//
// tests/rpc/transport/tcp_proxy.h breaks connections at exact places. This proxy injects faults by
// chance, until they are switched off. It runs in the network namespace of the worker. So packets
// to the worker that are dropped do not reach the proxy either.
//
// Thread safety: all methods may be called from any thread. One thread serves all connections.
// Lifetime: the destructor closes everything and joins the thread.
// Blocking: the constructor, until it listens.
// Errors: std::system_error from the constructor.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "weft/base/mutex.h"

namespace weft::chaos {

class FaultyProxy {
 public:
  struct Options {
    int name_space = -1;             // descriptor of a network namespace; -1: the caller's
    std::string host = "127.0.0.1";  // where it listens, on a free port
    // Returns the port on 127.0.0.1 where the worker listens; 0: it does not listen. Called for
    // each connection.
    std::function<uint16_t()> target;
    uint64_t seed = 1;
  };
  struct Counts {
    uint64_t connections = 0;
    uint64_t delayed = 0;    // pieces
    uint64_t truncated = 0;  // connections
    uint64_t hung = 0;       // connections
    uint64_t flipped = 0;    // bits
  };

  explicit FaultyProxy(Options options);
  ~FaultyProxy();
  FaultyProxy(const FaultyProxy&) = delete;
  FaultyProxy& operator=(const FaultyProxy&) = delete;

  const std::string& address() const { return address_; }  // host:port

  // Until changed, each piece is delayed by 1 to `most` ms. Zero: no delay.
  void delay(std::chrono::milliseconds most) ABSL_LOCKS_EXCLUDED(mutex_);
  // Until changed, one of so many pieces is cut short, and its connection is closed by RST or FIN.
  // 0: none.
  void truncate_one_in(uint64_t pieces) ABSL_LOCKS_EXCLUDED(mutex_);
  // Once: at one of so many pieces, forwarding on its connection stops in both directions, and
  // neither end is told. 0 cancels it if it has not happened.
  void hang_at_one_in(uint64_t pieces) ABSL_LOCKS_EXCLUDED(mutex_);
  // Until changed, one bit is flipped in one of so many pieces. 0: none.
  void flip_one_in(uint64_t pieces) ABSL_LOCKS_EXCLUDED(mutex_);

  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Piece;
  struct Pipe;
  struct Link;
  struct Faults {
    std::chrono::milliseconds delay{0};
    uint64_t truncate = 0;
    uint64_t hang = 0;
    uint64_t flip = 0;
  };

  void listen();
  void change(const std::function<void(Faults&)>& how) ABSL_LOCKS_EXCLUDED(mutex_);
  // The thread runs these.
  void serve();
  void accept();
  // Returns false when the connection has closed.
  bool pass(Link& link, TimePoint now) ABSL_LOCKS_EXCLUDED(mutex_);
  bool pass(Pipe& pipe, TimePoint now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads one piece. Returns false if the connection is broken.
  bool take_in(Pipe& pipe, TimePoint now) ABSL_LOCKS_EXCLUDED(mutex_);
  bool hand_on(Pipe& pipe, TimePoint now);
  int wait_time(TimePoint now) const;  // ms; -1: for ever
  bool chance(uint64_t one_in) { return one_in != 0 && random_() % one_in == 0; }

  const Options options_;
  std::string address_;
  const int wake_;  // an eventfd
  int door_ = -1;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  Faults faults_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  // Used only by the thread.
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Link>> links_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft::chaos
