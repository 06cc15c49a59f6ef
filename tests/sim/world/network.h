// Connections between lives of workers: they delay frames, repeat them, let them overtake each
// other, fall silent, and end with everything that is in flight.
//
// As with TCP, silence is not an end: what is sent into a partition waits for its end, or for the
// end of the connection. What a connection carries is shared with its sender's session, unchanged.
//
// Thread safety: none.
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "weft/rpc/transport/frame.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class World;

class Network {
 public:
  // How frames travel in this run.
  struct Manner {
    Nanoseconds delay_low{}, delay_high{};
    unsigned duplicates = 0;  // per thousand
    unsigned overtaking = 0;  // per thousand
  };

  explicit Network(World& world) : world_(world) {}

  void set_manner(const Manner& manner) { manner_ = manner; }
  const Manner& manner() const { return manner_; }

  // Returns the connection's number. Both ends may be the same life.
  int connect(Slot a, Slot b);
  bool open(int connection) const { return connections_[connection].open; }
  Slot other_end(int connection, Slot end) const {
    const auto& ends = connections_[connection].ends;
    return ends[0] == end ? ends[1] : ends[0];
  }
  void send(int connection, Slot from, FramePtr frame);
  // Heartbeats have a lane of their own: nothing is numbered, and they overtake each other.
  struct Heartbeat {
    uint64_t number = 0;  // 0: none
    bool answer = false;
    Nanoseconds lag{0};  // of the sender, as it says
  };
  void send_heartbeat(int connection, Slot from, const Heartbeat& heartbeat);
  // The frame, or nothing if it waits for a silence to end.
  struct Arrived {
    FramePtr frame;
    Heartbeat heartbeat;  // instead of a frame
    Slot from = kNobody;
    int connection = -1;
    bool repeated = false;   // one of two copies
    bool overtaken = false;  // made late on purpose
    bool lost = false;       // its connection has ended
  };
  Arrived arrive(uint64_t flight);
  // The receiver is gone.
  void drop(uint64_t flight);

  // Ends a connection. Each end notices for itself; `abrupt`: nothing in flight is read any more.
  void cut(int connection, bool abrupt, bool is_fault = false);
  // The cut made a difference.
  void felt_cut(int connection);
  void cut_all(Slot end, bool abrupt);
  std::vector<int> open_connections() const;

  // Directions between places (indices of workers) that are silent.
  void silence(uint32_t from, uint32_t to, size_t fault);
  // When the silence between them that lasts began; kNever: there is none.
  TimePoint silent_since(uint32_t from, uint32_t to) const;
  void restore(uint32_t from, uint32_t to);
  void restore_all();
  bool silent(uint32_t from, uint32_t to) const { return silent_.contains({from, to}); }
  // The same, by someone to whom it makes a difference.
  bool hits_silence(uint32_t from, uint32_t to);
  bool any_silent() const { return !silent_.empty(); }

 private:
  struct Connection {
    std::array<Slot, 2> ends{};
    bool open = true;
    bool cut_by_fault = false;                             // and nobody has felt it
    std::array<TimePoint, 2> reads_until{kNever, kNever};  // by end
    std::array<TimePoint, 2> last{};                       // arrival there, in order
  };
  struct Flight {
    int connection = -1;
    Slot from = kNobody, to = kNobody;
    Arrived what;
  };

  void take_off(int connection, Slot from, Slot to, Arrived what, TimePoint arrival);
  uint32_t place(Slot slot) const;

  World& world_;
  Manner manner_;
  std::vector<Connection> connections_;
  std::vector<Flight> flights_;
  std::vector<uint64_t> free_;
  std::vector<uint64_t> stalled_;
  struct Silence {
    size_t fault = 0;
    TimePoint since;
  };
  std::map<std::pair<uint32_t, uint32_t>, Silence> silent_;
};

}  // namespace weft::sim
