// A store of a job, as the workers, launchers and process groups use it.
//
// Thread safety: all methods may be called from any thread.
// Blocking, errors: as in rpc/rendezvous/rendezvous_store.h, and those that a store or a connection
// reports (store/store_core.h, store/store_client.h). All texts name the store.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"
#include "weft/store/store_calls.h"

namespace weft {

class StoreHandle final : public RendezvousStore {
 public:
  // A call that does not wait takes at most `timeout`.
  StoreHandle(std::unique_ptr<StoreCalls> calls, absl::Duration timeout);

  absl::Status set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) override;
  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override;
  absl::StatusOr<std::vector<std::optional<StoredValue>>> read(
      const std::vector<std::string>& keys) override;
  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override;
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override;
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override;
  std::string description() const override { return calls_->description(); }

  // As compare_set. nullopt: the key is absent.
  absl::StatusOr<std::optional<std::string>> exchange(const std::string& key,
                                                      const std::string& expected,
                                                      const std::string& desired);
  // Whether the key existed.
  absl::StatusOr<bool> erase(const std::string& key);
  // Whether all these keys exist now.
  absl::StatusOr<bool> all_exist(const std::vector<std::string>& keys);
  // How many keys there are.
  absl::StatusOr<int64_t> count();
  // Whether the store answers. Waits until it is there, at most for `timeout`.
  absl::Status reach(absl::Duration timeout);

 private:
  absl::StatusOr<wire::StoreReply> ask(wire::StoreCall call, absl::Duration timeout);
  absl::StatusOr<wire::StoreReply> change(wire::StoreCall call);
  absl::StatusOr<wire::StoreReply> checked(const wire::StoreCall& call,
                                           absl::StatusOr<wire::StoreReply> reply) const;
  // `timeout` is for the error's text.
  absl::StatusOr<wire::StoreReply> wait_for(wire::StoreCall::Read read,
                                            StoreCalls::TimePoint deadline, absl::Duration timeout);
  absl::Status named(const absl::Status& status) const;

  const std::unique_ptr<StoreCalls> calls_;
  const absl::Duration timeout_;
};

}  // namespace weft
