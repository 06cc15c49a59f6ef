// Calls the store of a job that another process serves.
//
// It dials when the first call comes, and again when a connection has broken. A call that a broken
// connection has cut is repeated, and the store makes a repeated change only once. But if the store
// was reached before and nobody listens there any more, it is gone.
//
// A change whose deadline passes without an answer may still be made. To prevent more such changes,
// the next call first asks whether the store answers again.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: no call may run when it is destroyed.
// Blocking: `call`, until its deadline.
// Errors: `create` returns InvalidArgument (a bad address). `call` returns:
//
// - DeadlineExceeded: the store was not reached in time, with the last reason, or does not answer.
//   That is also so if something is there that does not speak gRPC.
//
// - Unavailable: the store was reached before and is gone, or another gRPC service is there.
//
// - Unauthenticated: one end does not accept the other's certificate, or the store does not use
//   TLS. FailedPrecondition: another user's process serves there.
//
// - ResourceExhausted, Internal: the system lacks something.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/security/tls_identity.h"
#include "weft/store/store_calls.h"

namespace weft {

struct StoreClientOptions {
  std::string address;  // HOST:PORT, or "unix:" and the name of a listener
  // With this identity, the store needs a certificate of the same job. Null: the store proves
  // nothing.
  std::shared_ptr<TlsIdentity> tls = nullptr;
};

class StoreClient final : public StoreCalls {
 public:
  static absl::StatusOr<std::unique_ptr<StoreClient>> create(StoreClientOptions options);
  ~StoreClient() override;

  absl::StatusOr<wire::StoreReply> call(wire::StoreCall call, TimePoint deadline) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::string description() const override;

 private:
  struct Security;  // of gRPC
  struct Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;

  StoreClient(StoreClientOptions options, std::unique_ptr<Security> security);

  absl::StatusOr<ConnectionPtr> connection() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ConnectionPtr> dial() const;
  std::optional<WorkerClaim> expected() const;
  void drop(const ConnectionPtr& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<wire::StoreReply> call_once(const wire::StoreCall& call, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<wire::StoreReply> call_until(wire::StoreCall& call, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const StoreClientOptions options_;
  const std::unique_ptr<Security> security_;

  Mutex mutex_;
  ConnectionPtr connection_ ABSL_GUARDED_BY(mutex_);
  uint64_t instance_ ABSL_GUARDED_BY(mutex_) = 0;  // of the store; 0: not reached yet
  // Counts the calls that ended without an answer. `answered_` is its value when the last answered
  // call began.
  uint64_t unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft
