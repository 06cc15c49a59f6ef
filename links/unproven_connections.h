// Chooses which accepted connections to give up, of those whose far ends have not yet proven that
// they belong to the job.
//
// There are at most `most` of them. To make room, a connection of the host that has the most of
// them is given up: its oldest silent one, otherwise its oldest. So a host that floods this worker
// pushes out its own connections, not those of others. All addresses of an IPv6 network with 64
// bits count as one host, because one machine may use them all. Honest far ends get some time
// first.
//
// Thread safety: none. Pure: no sockets and no clock.
#pragma once

#include <arpa/inet.h>
#include <cstddef>
#include <cstdint>
#include <map>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/clock.h"

namespace weft {

class UnprovenConnections {
 public:
  // A connection may be given up when it is so old.
  struct Ages {
    Nanoseconds silent;
    Nanoseconds speaking;  // if its far end has sent something
  };
  UnprovenConnections(size_t most, Ages ages) : most_(most), ages_(ages) {}

  // `number` grows from call to call. `address` is numeric.
  void add(uint64_t number, const std::string& address, TimePoint now) {
    std::string host = host_of(address);
    ++counts_[host];
    connections_[number] = {std::move(host), now};
  }
  // The far end has sent something.
  void speaks(uint64_t number) { connections_.at(number).silent = false; }
  void remove(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    const auto count = counts_.find(found->second.host);
    if (--count->second == 0) counts_.erase(count);
    connections_.erase(found);
  }

  bool full() const { return connections_.size() >= most_; }
  // The connection to give up for another one. nullopt: there is none that may be given up now.
  std::optional<uint64_t> to_give_up(TimePoint now) const {
    const auto oldest = oldest_of_fullest([&](const Connection& one) { return is_old(one, now); });
    if (!oldest.has_value()) return std::nullopt;
    const std::string& host = connections_.at(*oldest).host;
    const auto silent = oldest_of_fullest(
        [&](const Connection& one) { return one.silent && one.host == host && is_old(one, now); });
    return silent.has_value() ? silent : oldest;
  }
  // The oldest silent connection that may be given up, of the host that has the most connections.
  std::optional<uint64_t> silent_to_give_up(TimePoint now) const {
    return oldest_of_fullest([&](const Connection& one) { return one.silent && is_old(one, now); });
  }
  // Those that were added at `time` or before.
  std::vector<uint64_t> until(TimePoint time) const {
    std::vector<uint64_t> late;
    for (const auto& [number, connection] : connections_) {
      if (connection.since > time) break;
      late.push_back(number);
    }
    return late;
  }
  std::optional<TimePoint> oldest() const {
    if (connections_.empty()) return std::nullopt;
    return connections_.begin()->second.since;
  }

 private:
  struct Connection {
    std::string host;
    TimePoint since;
    bool silent = true;
  };

  bool is_old(const Connection& connection, TimePoint now) const {
    return now - connection.since >= (connection.silent ? ages_.silent : ages_.speaking);
  }
  static std::string host_of(const std::string& address) {
    in6_addr bytes = {};
    const std::string without_zone = address.substr(0, address.find('%'));
    if (::inet_pton(AF_INET6, without_zone.c_str(), &bytes) != 1) return address;
    return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes) / 2);
  }

  // Finds the hosts that have a connection of this kind, and among them the one with the most
  // connections of any kind. Returns its oldest one of this kind.
  template <class IsKind>
  std::optional<uint64_t> oldest_of_fullest(IsKind is_kind) const {
    std::optional<uint64_t> found;
    size_t most = 0;
    for (const auto& [number, connection] : connections_) {
      const size_t count = counts_.at(connection.host);
      if (!is_kind(connection) || count <= most) continue;
      most = count;
      found = number;
    }
    return found;
  }

  const size_t most_;
  const Ages ages_;
  std::map<uint64_t, Connection> connections_;  // the oldest first
  std::map<std::string, size_t> counts_;        // by host
};

}  // namespace weft
