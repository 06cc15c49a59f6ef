#include "weft/store/hosted_stores.h"

#include <map>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"

namespace weft {
namespace {

// The store that this process hosts at one place.
class Slot {
 public:
  // The lock is held while `make` runs, because two users at the same time would compete for the
  // port.
  absl::StatusOr<std::shared_ptr<StoreHandle>> open(const MakeStore& make)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    std::shared_ptr<StoreHandle> store = store_.lock();
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
  void release(std::shared_ptr<StoreHandle> store) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    store.reset();
  }

 private:
  Mutex mutex_;
  std::weak_ptr<StoreHandle> store_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<StoreHandle> kept_ ABSL_GUARDED_BY(mutex_);  // the store of store_, or null
};

class Slots {
 public:
  // The result lives as long as this object.
  Slot& at(const std::string& where) ABSL_LOCKS_EXCLUDED(mutex_) {
    // The process is part of the key: a forked child must not touch the stores that its parent
    // serves.
    const std::string key = absl::StrCat(getpid(), " ", where);
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

absl::StatusOr<std::shared_ptr<StoreHandle>> share_hosted_store(const std::string& where,
                                                                const MakeStore& make) {
  Slot& slot = slots().at(where);
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<StoreHandle> store, slot.open(make));
  StoreHandle* const handle = store.get();
  return std::shared_ptr<StoreHandle>(
      handle, [&slot, process = getpid(), store = std::move(store)](StoreHandle*) mutable {
        if (process == getpid()) return slot.release(std::move(store));
        new std::shared_ptr<StoreHandle>(std::move(store));  // never destroyed
      });
}

void keep_hosted_store(const std::string& where) { slots().at(where).keep(); }

}  // namespace weft
