// A job's store as c10d's process groups use it.
//
// Thread safety: as c10d::Store. Calls of several threads do not wait for each other.
// Errors: c10::DistNetworkError (the store is gone, or does not answer), c10::DistStoreError (no
// such key in time, or the store refuses the call). All texts name the store. What c10d::Store
// itself refuses, such as queues, this store has not either.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/store/store_handle.h"

namespace weft {

class C10dStore final : public c10d::Store {
 public:
  // `timeout` limits each wait (setTimeout changes it). The store's own limits the other calls.
  C10dStore(std::shared_ptr<StoreHandle> store, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

  std::string description() const { return store_->description(); }

 private:
  const std::shared_ptr<StoreHandle> store_;
};

}  // namespace weft
