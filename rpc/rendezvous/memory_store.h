// A rendezvous store inside one process, for groups whose workers all live in it.
//
// Thread safety: all methods may be called from any thread.
// Blocking, errors: as in rendezvous_store.h, but never Unavailable.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/mutex.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"

namespace weft {

class MemoryStore final : public RendezvousStore {
 public:
  absl::Status set(const std::string& key, const std::string& value) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::string description() const override { return "in-process store"; }

 private:
  absl::Status wait_locked(const std::vector<std::string>& keys, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft
