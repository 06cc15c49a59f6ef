// Chooses which accepted connections to give up, of those whose far ends have not yet proven that
// they belong to the job.
//
// There are at most `most` of them. If there is one more, the host that has the most of them loses
// its oldest one. So a host that floods this worker pushes out its own connections, not those of
// others. All addresses of an IPv6 network with 64 bits count as one host, because one machine may
// use them all.
//
// Thread safety: none. Pure: no sockets and no clock.
#pragma once

#include <algorithm>
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

namespace weft::rpc_internal {

class UnprovenConnections {
 public:
  explicit UnprovenConnections(size_t most) : most_(most) {}

  // `number` grows from call to call. Returns the connection to give up, which may be this one.
  std::optional<uint64_t> add(uint64_t number, const std::string& address, TimePoint now) {
    const std::string host = host_of(address);
    connections_[number] = {host, now};
    ++counts_[host];
    if (connections_.size() <= most_) return std::nullopt;
    size_t largest = 0;
    for (const auto& [other, count] : counts_) largest = std::max(largest, count);
    const auto oldest =
        std::find_if(connections_.begin(), connections_.end(),
                     [&](const auto& entry) { return counts_.at(entry.second.host) == largest; });
    const uint64_t lost = oldest->first;
    remove(lost);
    return lost;
  }

  void remove(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    const auto count = counts_.find(found->second.host);
    if (--count->second == 0) counts_.erase(count);
    connections_.erase(found);
  }

  // Removes and returns those that were added at `time` or before.
  std::vector<uint64_t> take_until(TimePoint time) {
    std::vector<uint64_t> taken;
    while (!connections_.empty() && connections_.begin()->second.since <= time) {
      taken.push_back(connections_.begin()->first);
      remove(taken.back());
    }
    return taken;
  }
  std::optional<TimePoint> oldest() const {
    if (connections_.empty()) return std::nullopt;
    return connections_.begin()->second.since;
  }
  size_t size() const { return connections_.size(); }

 private:
  struct Connection {
    std::string host;
    TimePoint since;
  };

  // `address` is numeric.
  static std::string host_of(const std::string& address) {
    in6_addr bytes = {};
    if (::inet_pton(AF_INET6, address.c_str(), &bytes) != 1) return address;
    return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes) / 2);
  }

  const size_t most_;
  std::map<uint64_t, Connection> connections_;  // the oldest first
  std::map<std::string, size_t> counts_;        // by host
};

}  // namespace weft::rpc_internal
