// Connections between incarnations of workers. They delay frames, repeat them, let them overtake
// each other, fall silent, and lose everything in flight when they close.
//
// As with TCP, silence does not close a connection. Frames that are sent into a partition wait
// until the partition is over or the connection closes. Frames on a connection are shared with the
// sender's session and never changed.
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
  // Delays and faults of frames in this run.
  struct Manner {
    Nanoseconds delay_low{}, delay_high{};
    unsigned duplicates = 0;  // per thousand
    unsigned overtaking = 0;  // per thousand
  };

  explicit Network(World& world) : world_(world) {}

  void set_manner(const Manner& manner) { manner_ = manner; }
  const Manner& manner() const { return manner_; }

  // Returns the number of the connection. Both ends may be the same incarnation.
  int connect(Slot a, Slot b);
  bool open(int connection) const { return connections_[connection].open; }
  Slot other_end(int connection, Slot end) const {
    const auto& ends = connections_[connection].ends;
    return ends[0] == end ? ends[1] : ends[0];
  }
  void send(int connection, Slot from, FramePtr frame);
  // Heartbeats use a stream of their own. They have no sequence numbers, and they overtake each
  // other.
  struct Heartbeat {
    uint64_t number = 0;  // 0: none
    bool answer = false;
    Nanoseconds lag{0};  // of the sender, as it reports
  };
  void send_heartbeat(int connection, Slot from, const Heartbeat& heartbeat);
  // Takes a flight that arrives. It is empty if the frame must wait for a silence to end.
  struct Arrived {
    FramePtr frame;
    Heartbeat heartbeat;  // set instead of a frame
    Slot from = kNobody;
    int connection = -1;
    bool repeated = false;   // one of two copies
    bool overtaken = false;  // delayed on purpose
    bool lost = false;       // its connection has closed
  };
  Arrived arrive(uint64_t flight);
  // Drops a flight whose receiver is gone.
  void drop(uint64_t flight);

  // Closes a connection. Each end notices later. With `abrupt`, frames in flight are not read any
  // more.
  void cut(int connection, bool abrupt, bool is_fault = false);
  // Records that the cut had an effect.
  void felt_cut(int connection);
  void cut_all(Slot end, bool abrupt);
  std::vector<int> open_connections() const;

  // Makes directions between slots (indices of workers) silent.
  void silence(uint32_t from, uint32_t to, size_t fault);
  // Returns when the present silence between the two began. kNever if there is none.
  TimePoint silent_since(uint32_t from, uint32_t to) const;
  void restore(uint32_t from, uint32_t to);
  void restore_all();
  bool silent(uint32_t from, uint32_t to) const { return silent_.contains({from, to}); }
  // The same as silent(), and records that the silence had an effect.
  bool hits_silence(uint32_t from, uint32_t to);
  bool any_silent() const { return !silent_.empty(); }

 private:
  struct Connection {
    std::array<Slot, 2> ends{};
    bool open = true;
    bool cut_by_fault = false;                             // and no worker has noticed yet
    std::array<TimePoint, 2> reads_until{kNever, kNever};  // by end
    std::array<TimePoint, 2> last{};                       // arrival there; arrivals are in order
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
