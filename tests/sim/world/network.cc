#include "weft/tests/sim/world/network.h"

#include <utility>

#include "weft/tests/sim/world/world.h"

namespace weft::sim {

uint32_t Network::place(Slot slot) const { return world_.incarnation(slot).id.index; }

int Network::connect(Slot a, Slot b) {
  Connection connection;
  connection.ends = {a, b};
  connections_.push_back(connection);
  return static_cast<int>(connections_.size()) - 1;
}

void Network::send(int number, Slot from, FramePtr frame) {
  Connection& connection = connections_[number];
  const Slot to = other_end(number, from);
  if (!connection.open) {
    world_.report.count(Effect::kFramesLost);
    return;
  }
  const TimePoint now = world_.schedule.now();
  if (from == to) {
    Arrived what;
    what.frame = std::move(frame);
    return take_off(number, from, to, std::move(what), now + std::chrono::microseconds(2));
  }
  Dice& dice = world_.dice;
  const size_t end = connection.ends[1] == to ? 1 : 0;
  const Nanoseconds width = manner_.delay_high - manner_.delay_low;
  const Nanoseconds delay =
      manner_.delay_low + Nanoseconds(static_cast<int64_t>(dice.below(width.count() + 1)));
  TimePoint arrival = now + delay;
  Arrived what;
  what.frame = std::move(frame);
  if (dice.below(1000) < manner_.overtaking) {
    arrival += delay * 4;
    what.overtaken = true;
    world_.report.inject(Fault::kOvertake);
  } else {
    arrival = connection.last[end] = std::max(arrival, connection.last[end]);
  }
  if (dice.below(1000) < manner_.duplicates) {
    what.repeated = true;
    world_.report.inject(Fault::kDuplicate);
    take_off(number, from, to, what, arrival + delay * static_cast<int64_t>(dice.below(6)));
  }
  take_off(number, from, to, std::move(what), arrival);
}

void Network::send_heartbeat(int number, Slot from, const Heartbeat& heartbeat) {
  if (!connections_[number].open) return;
  Arrived what;
  what.heartbeat = heartbeat;
  const Nanoseconds width = manner_.delay_high - manner_.delay_low;
  take_off(number, from, other_end(number, from), std::move(what),
           world_.schedule.now() + manner_.delay_low +
               Nanoseconds(static_cast<int64_t>(world_.dice.below(width.count() + 1))));
}

void Network::take_off(int connection, Slot from, Slot to, Arrived what, TimePoint arrival) {
  uint64_t number = 0;
  if (free_.empty()) {
    number = flights_.size();
    flights_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  flights_[number] = {connection, from, to, std::move(what)};
  world_.schedule.at(arrival, EventKind::kArrive, to, number);
}

void Network::drop(uint64_t number) {
  flights_[number].what.frame = nullptr;
  free_.push_back(number);
}

Network::Arrived Network::arrive(uint64_t number) {
  Flight& flight = flights_[number];
  flight.what.from = flight.from;
  flight.what.connection = flight.connection;
  const Connection& over = connections_[flight.connection];
  const size_t end = over.ends[1] == flight.to ? 1 : 0;
  if (world_.schedule.now() > over.reads_until[end]) {
    if (flight.what.heartbeat.number == 0) {
      world_.report.count(Effect::kFramesLost);
      felt_cut(flight.connection);
    }
    flight.what.lost = true;
    Arrived what = std::move(flight.what);
    drop(number);
    return what;
  }
  if (flight.from != flight.to && hits_silence(place(flight.from), place(flight.to))) {
    if (flight.what.heartbeat.number == 0) world_.report.count(Effect::kFramesStalled);
    stalled_.push_back(number);
    return {};
  }
  Arrived what = std::move(flight.what);
  drop(number);
  return what;
}

bool Network::hits_silence(uint32_t from, uint32_t to) {
  auto found = silent_.find({from, to});
  if (found == silent_.end()) return false;
  world_.felt(found->second.fault);
  return true;
}

void Network::felt_cut(int connection) {
  if (std::exchange(connections_[connection].cut_by_fault, false)) {
    world_.report.effect(Fault::kCut);
  }
}

void Network::cut(int number, bool abrupt, bool is_fault) {
  Connection& connection = connections_[number];
  if (!connection.open) return;
  connection.open = false;
  connection.cut_by_fault = is_fault;
  for (size_t end = 0; end < 2; ++end) {
    const TimePoint noticed = world_.schedule.now() + world_.dice.micros(50, 2000);
    connection.reads_until[end] = abrupt ? world_.schedule.now() : noticed;
    world_.schedule.at(noticed, EventKind::kClosed, connection.ends[end],
                       static_cast<uint64_t>(number));
  }
}

void Network::cut_all(Slot end, bool abrupt) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].open &&
        (connections_[i].ends[0] == end || connections_[i].ends[1] == end)) {
      cut(static_cast<int>(i), abrupt);
    }
  }
}

std::vector<int> Network::open_connections() const {
  std::vector<int> all;
  for (size_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = connections_[i];
    if (connection.open && connection.ends[0] != connection.ends[1]) {
      all.push_back(static_cast<int>(i));
    }
  }
  return all;
}

void Network::silence(uint32_t from, uint32_t to, size_t fault) {
  silent_.try_emplace({from, to}, Silence{fault, world_.schedule.now()}).first->second.fault =
      fault;
}

TimePoint Network::silent_since(uint32_t from, uint32_t to) const {
  auto found = silent_.find({from, to});
  return found == silent_.end() ? kNever : found->second.since;
}

void Network::restore(uint32_t from, uint32_t to) {
  auto ended = silent_.extract({from, to});
  if (ended.empty()) return;
  world_.absences.push_back({from, to, ended.mapped().since, world_.schedule.now()});
  std::vector<uint64_t> waiting;
  waiting.swap(stalled_);
  for (const uint64_t number : waiting) {
    const Flight& flight = flights_[number];
    if (silent(place(flight.from), place(flight.to))) {
      stalled_.push_back(number);
    } else {
      world_.schedule.in(world_.dice.micros(100, 2000), EventKind::kArrive, flight.to, number);
    }
  }
}

void Network::restore_all() {
  while (!silent_.empty()) {
    const auto [from, to] = silent_.begin()->first;
    restore(from, to);
  }
}

}  // namespace weft::sim
