// The small key-value store through which the workers of a group find each other.
//
// A worker that joins knows this store and nothing else. c10d's TCPStore stands behind it in a
// job (worker/rendezvous.h), a MemoryStore in tests.
// Thread safety: all methods may be called from any thread.
// Blocking: get and wait block until their timeout; every other call is one round trip, bounded by
// the implementation's own timeout.
// Errors: DeadlineExceeded (a key did not appear, or the store did not answer), Unavailable (the
// store is gone), InvalidArgument (add on a key that holds no number). Messages name the store.
// Security: the store authenticates nobody; what it holds is a hint, never proof.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft {

class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  virtual absl::Status set(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists.
  virtual absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) = 0;
  // nullopt: the key does not exist.
  virtual absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) = 0;
  // Adds to the decimal number under `key`, absent counting as 0, and returns the sum.
  virtual absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) = 0;
  // Writes `desired` if the key holds `expected`, or if it is absent and `expected` is empty.
  // Returns what the key holds afterwards, "" if it is absent: `desired` means the exchange was
  // made (or had been made before with the same value).
  virtual absl::StatusOr<std::string> compare_set(const std::string& key,
                                                  const std::string& expected,
                                                  const std::string& desired) = 0;
  // Waits until all keys exist.
  virtual absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) = 0;

  // For messages: "TCPStore at 127.0.0.1:29500".
  virtual std::string description() const = 0;
};

}  // namespace weft
