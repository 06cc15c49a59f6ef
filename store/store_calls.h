// An object of this kind makes a client's calls on a store: in the store's own process, or over a
// connection.
//
// Thread safety: all methods may be called from any thread.
// Protocol: proto/store.proto.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "weft/proto/store.pb.h"

namespace weft {

// The newest version of the protocol. Later versions only add to it. A call says the first version
// that has what it uses, so that older stores serve it too. That is 1 for all calls so far.
inline constexpr uint32_t kStoreVersion = 1;
inline constexpr uint32_t kVersionOfAllCalls = 1;
// The most bytes of a call or a reply.
inline constexpr int kMostStoreMessage = 2 << 20;

// A random number that is not 0. It comes from the kernel each time: a generator would give a
// forked child the numbers of its parent.
inline uint64_t random_store_number() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device() | 1;
}

class StoreCalls {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~StoreCalls() = default;

  // The caller sets the version.
  // Blocking: until the store answers, or until the deadline.
  // Errors: DeadlineExceeded; Unavailable (the store is gone); those of a connection. Errors that
  // the store itself reports are in the reply.
  virtual absl::StatusOr<wire::StoreReply> call(wire::StoreCall call, TimePoint deadline) = 0;
  // A text for messages, for example "rendezvous store at 127.0.0.1:29500".
  virtual std::string description() const = 0;
};

}  // namespace weft
