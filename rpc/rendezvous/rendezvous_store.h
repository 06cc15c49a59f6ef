// The interface of the small key-value store through which the workers of a group find each other.
//
// A joining worker knows only this store. In a job it is a StoreHandle (store/store_handle.h), in
// tests a MemoryStore.
//
// Thread safety: all methods may be called from any thread.
// Blocking: `get` and `wait` block at most for their timeout. Each other call takes at most the
// implementation's own timeout. If the values are large, `read` makes several such calls.
// Errors: DeadlineExceeded (a key did not appear, or the store did not answer), Unavailable (the
// store is gone), InvalidArgument (add on a key that holds no number). Messages name the store.
// Security: a value proves nothing, unless its author is proven.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft {

struct StoredValue {
  std::string value;
  std::string author;  // the worker that wrote it, if a certificate proves its name; otherwise ""
};

class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  virtual absl::Status set(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists.
  virtual absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) = 0;
  // nullopt: the key does not exist.
  virtual absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) = 0;
  // The values of all keys, in their order; nullopt: the key does not exist. By default one call
  // for each key, without authors.
  virtual absl::StatusOr<std::vector<std::optional<StoredValue>>> read(
      const std::vector<std::string>& keys);
  // Adds to the decimal number under `key` and returns the sum. An absent key counts as 0.
  virtual absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) = 0;
  // Writes `desired` if the key holds `expected`, or if the key is absent and `expected` is empty.
  // Returns the value of the key afterwards, "" if it is absent. If that is `desired`, the exchange
  // was made now, or it was made before with the same value.
  virtual absl::StatusOr<std::string> compare_set(const std::string& key,
                                                  const std::string& expected,
                                                  const std::string& desired) = 0;
  // Waits until all keys exist.
  virtual absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) = 0;

  // A text for messages, for example "rendezvous store at 127.0.0.1:29500".
  virtual std::string description() const = 0;
};

}  // namespace weft
