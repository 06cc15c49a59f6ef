// The credentials of this process, which may change while it runs.
//
// A site that issues certificates replaces them before they expire. Then new connections use the
// new ones, and existing connections go on.
//
// Thread safety: all methods may be called from any thread, but on_change() not from its callback.
// Lifetime: the destructor joins the thread that looks for changes.
// Errors: `watching` returns ResourceExhausted if the system refuses a thread. New credentials that
// cannot be used leave the old ones in place, and the log says why.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/security/certificates.h"

namespace weft {

class TlsIdentity {
 public:
  // nullopt: nothing has changed since the last call.
  using Load = std::function<absl::StatusOr<std::optional<TlsCredentials>>()>;
  using Changed = std::function<absl::Status(const TlsCredentials& now)>;

  // Credentials that never change.
  explicit TlsIdentity(TlsCredentials fixed);
  // Calls `load` on a thread of its own, with pauses of `every`. The name must stay the same.
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> watching(TlsCredentials first, Load load,
                                                               Nanoseconds every);
  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  bool may_change() const { return load_ != nullptr; }
  std::shared_ptr<const TlsCredentials> current() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `changed` now, and after each change on the thread that looks. If it returns an error, it
  // is called again at the next look. There is one such function; null removes it, and waits for a
  // call that runs.
  void on_change(Changed changed) ABSL_LOCKS_EXCLUDED(calling_, mutex_);

 private:
  void run(Nanoseconds every) ABSL_LOCKS_EXCLUDED(mutex_);
  void look() ABSL_LOCKS_EXCLUDED(mutex_, calling_);
  void refuse(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calling_);
  void tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(calling_) ABSL_LOCKS_EXCLUDED(mutex_);

  const Load load_;

  Mutex calling_;
  Changed changed_ ABSL_GUARDED_BY(calling_);
  bool is_told_ ABSL_GUARDED_BY(calling_) = true;
  // Why the newest credentials cannot be used.
  std::string refused_ ABSL_GUARDED_BY(calling_);
  bool is_logged_ ABSL_GUARDED_BY(calling_) = false;

  mutable Mutex mutex_;
  CondVar wake_;
  std::shared_ptr<const TlsCredentials> current_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;

  TlsIdentity(TlsCredentials first, Load load);
};

}  // namespace weft
