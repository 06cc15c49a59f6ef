#include "weft/worker/store/hosted_stores.h"

#include <map>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"

namespace weft::worker_internal {
namespace {

// The store that this process hosts at one address.
class Slot {
 public:
  // The lock is held while `make` runs, because two users at the same time would compete for the
  // port.
  absl::StatusOr<std::shared_ptr<RendezvousStore>> open(const MakeStore& make)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    std::shared_ptr<RendezvousStore> store = store_.lock();
    kept_ = nullptr;  // the new user holds the store now
    if (store != nullptr) return store;
    WEFT_ASSIGN_OR_RETURN(store, make());
    store_ = store;
    return store;
  }

  void keep() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    kept_ = store_.lock();
  }

  // A user gives the store back. It is destroyed under the lock, so the next user finds either the
  // store or a free port.
  void release(std::shared_ptr<RendezvousStore> store) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    store.reset();
  }

 private:
  Mutex mutex_;
  std::weak_ptr<RendezvousStore> store_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<RendezvousStore> kept_ ABSL_GUARDED_BY(mutex_);  // the store of store_, or null
};

// One user's handle of a store that others may use too.
class SharedStore final : public RendezvousStore {
 public:
  SharedStore(Slot& slot, std::shared_ptr<RendezvousStore> store)
      : slot_(slot), store_(std::move(store)) {}
  ~SharedStore() override { slot_.release(std::move(store_)); }

  absl::Status set(const std::string& key, const std::string& value) override {
    return store_->set(key, value);
  }
  absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) override {
    return store_->get(key, timeout);
  }
  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override {
    return store_->try_get(key);
  }
  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override {
    return store_->add(key, amount);
  }
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override {
    return store_->compare_set(key, expected, desired);
  }
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return store_->wait(keys, timeout);
  }
  std::string description() const override { return store_->description(); }

 private:
  Slot& slot_;                              // never destroyed
  std::shared_ptr<RendezvousStore> store_;  // shared by its users, and with the slot if it is kept
};

class Slots {
 public:
  // The result lives as long as this object.
  Slot& at(const std::string& host, uint16_t port) ABSL_LOCKS_EXCLUDED(mutex_) {
    // The process is part of the key: a forked child must not touch the stores that its parent
    // serves.
    const std::string key = absl::StrCat(getpid(), " ", host, ":", port);
    MutexLock lock(mutex_);
    std::unique_ptr<Slot>& slot = slots_[key];
    if (slot == nullptr) slot = std::make_unique<Slot>();
    return *slot;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);
};

Slots& slots() {
  // Never destroyed: destroying a store waits for threads, and the exit of the process must not
  // wait.
  static auto* const all = new Slots;
  return *all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousStore>> share_hosted_store(const std::string& host,
                                                                    uint16_t port,
                                                                    const MakeStore& make) {
  if (port == 0) return make();
  Slot& slot = slots().at(host, port);
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<RendezvousStore> store, slot.open(make));
  return std::make_unique<SharedStore>(slot, std::move(store));
}

void keep_hosted_store(const std::string& host, uint16_t port) {
  if (port != 0) slots().at(host, port).keep();
}

}  // namespace weft::worker_internal
