// A rendezvous store that a test can cut off from one worker, as if that worker had been killed.
//
// While it is cut, every call fails at once with Unavailable and the shared store is not touched. A
// call that already waits in the shared store goes on.
//
// Thread safety: all methods may be called from any thread.
// Blocking: as the shared store does.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/rpc/rendezvous/rendezvous_store.h"

namespace weft::testing {

class CuttableStore final : public RendezvousStore {
 public:
  explicit CuttableStore(std::shared_ptr<RendezvousStore> store) : store_(std::move(store)) {}

  void cut() { cut_.store(true); }
  void mend() { cut_.store(false); }

  absl::Status set(const std::string& key, const std::string& value) override {
    return cut_ ? gone() : store_->set(key, value);
  }
  absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) override {
    if (cut_) return gone();
    return store_->get(key, timeout);
  }
  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override {
    if (cut_) return gone();
    return store_->try_get(key);
  }
  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override {
    if (cut_) return gone();
    return store_->add(key, amount);
  }
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override {
    if (cut_) return gone();
    return store_->compare_set(key, expected, desired);
  }
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return cut_ ? gone() : store_->wait(keys, timeout);
  }
  std::string description() const override { return store_->description(); }

 private:
  static absl::Status gone() { return absl::UnavailableError("the test took the store away"); }

  const std::shared_ptr<RendezvousStore> store_;  // shared with the other workers
  std::atomic<bool> cut_{false};
};

}  // namespace weft::testing
