#include "weft/security/tls_identity.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"

namespace weft {

TlsIdentity::TlsIdentity(TlsCredentials first, Load load)
    : load_(std::move(load)), current_(std::make_shared<const TlsCredentials>(std::move(first))) {}

TlsIdentity::TlsIdentity(TlsCredentials fixed) : TlsIdentity(std::move(fixed), nullptr) {}

absl::StatusOr<std::shared_ptr<TlsIdentity>> TlsIdentity::watching(TlsCredentials first, Load load,
                                                                   Nanoseconds every) {
  std::shared_ptr<TlsIdentity> made(new TlsIdentity(std::move(first), std::move(load)));
  WEFT_ASSIGN_OR_RETURN(made->thread_, start_thread("certificate files", [raw = made.get(), every] {
                          raw->run(every);
                        }));
  return made;
}

TlsIdentity::~TlsIdentity() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const TlsCredentials> TlsIdentity::current() const {
  MutexLock lock(mutex_);
  return current_;
}

void TlsIdentity::on_change(Changed changed) {
  MutexLock lock(calling_);
  changed_ = std::move(changed);
  tell();
}

void TlsIdentity::tell() {
  const absl::Status status = changed_ == nullptr ? absl::OkStatus() : changed_(*current());
  is_told_ = status.ok();
  if (!status.ok()) refuse(status);
}

void TlsIdentity::run(Nanoseconds every) {
  while (true) {
    {
      const TimePoint next = std::chrono::steady_clock::now() + every;
      MutexLock lock(mutex_);
      while (!stopping_ && wake_.wait_until(mutex_, next)) {
      }
      if (stopping_) return;
    }
    look();
  }
}

void TlsIdentity::look() {
  absl::StatusOr<std::optional<TlsCredentials>> loaded = load_();
  MutexLock calling(calling_);
  if (!loaded.ok()) return refuse(loaded.status());
  if (loaded->has_value()) {
    const std::shared_ptr<const TlsCredentials> old = current();
    if (!((*loaded)->name == old->name)) {
      return refuse(absl::InvalidArgumentError(
          absl::StrCat("they name ", (*loaded)->name.uri(), " instead of ", old->name.uri())));
    }
    auto now = std::make_shared<const TlsCredentials>(**std::move(loaded));
    MutexLock lock(mutex_);
    current_ = std::move(now);
    is_told_ = false;
  }
  if (is_told_) return;
  tell();
  if (is_told_) refused_.clear();
}

// The first time, the files may be half replaced. So only the second time counts.
void TlsIdentity::refuse(const absl::Status& why) {
  if (refused_ != why.message()) {
    refused_ = std::string(why.message());
    is_logged_ = false;
    return;
  }
  if (std::exchange(is_logged_, true)) return;
  log_warning("the new certificate files cannot be used, and the old certificate stays: ",
              why.message());
}

}  // namespace weft
