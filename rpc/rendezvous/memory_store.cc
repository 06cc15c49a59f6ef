#include "weft/rpc/rendezvous/memory_store.h"

#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

std::chrono::steady_clock::time_point deadline_after(absl::Duration timeout) {
  const auto now = std::chrono::steady_clock::now();
  const auto never = std::chrono::steady_clock::time_point::max();
  if (timeout >= absl::FromChrono(never - now)) return never;
  return now + absl::ToChronoNanoseconds(timeout);
}

}  // namespace

absl::Status MemoryStore::set(const std::string& key, const std::string& value) {
  MutexLock lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::get(const std::string& key, absl::Duration timeout) {
  MutexLock lock(mutex_);
  if (absl::Status status = wait_locked({key}, timeout); !status.ok()) return status;
  return values_[key];
}

absl::StatusOr<std::optional<std::string>> MemoryStore::try_get(const std::string& key) {
  MutexLock lock(mutex_);
  auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<int64_t> MemoryStore::add(const std::string& key, int64_t amount) {
  MutexLock lock(mutex_);
  std::string& value = values_.try_emplace(key, "0").first->second;
  int64_t number = 0;
  if (!absl::SimpleAtoi(value, &number)) {
    return absl::InvalidArgumentError(absl::StrCat(description(), ": '", key, "' holds no number"));
  }
  number += amount;
  value = absl::StrCat(number);
  changed_.notify_all();
  return number;
}

absl::StatusOr<std::string> MemoryStore::compare_set(const std::string& key,
                                                     const std::string& expected,
                                                     const std::string& desired) {
  MutexLock lock(mutex_);
  auto found = values_.find(key);
  if (found == values_.end()) {
    if (!expected.empty()) return std::string();
    found = values_.emplace(key, desired).first;
  } else if (found->second == expected) {
    found->second = desired;
  }
  changed_.notify_all();
  return found->second;
}

absl::Status MemoryStore::wait(const std::vector<std::string>& keys, absl::Duration timeout) {
  MutexLock lock(mutex_);
  return wait_locked(keys, timeout);
}

absl::Status MemoryStore::wait_locked(const std::vector<std::string>& keys,
                                      absl::Duration timeout) {
  const auto deadline = deadline_after(timeout);
  for (const std::string& key : keys) {
    while (values_.count(key) == 0) {
      if (!changed_.wait_until(mutex_, deadline) && values_.count(key) == 0) {
        return absl::DeadlineExceededError(
            absl::StrCat(description(), ": no '", key, "' within ", absl::FormatDuration(timeout)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace weft
