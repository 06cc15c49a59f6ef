#include "weft/store/job/c10d_store.h"

#include <optional>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

std::vector<uint8_t> bytes_of_text(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of_bytes(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

[[noreturn]] void fail(const absl::Status& status) {
  const std::string text(status.message());
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    C10_THROW_ERROR(DistNetworkError, text);
  }
  C10_THROW_ERROR(DistStoreError, text);
}

// For a wait: if its time is over, the key is missing.
absl::Status missing(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) ? absl::NotFoundError(status.message()) : status;
}

absl::Duration limit(std::chrono::milliseconds timeout) {
  if (timeout == c10d::Store::kNoTimeout) return absl::InfiniteDuration();
  return absl::FromChrono(timeout);
}

template <class Value>
Value value_of(absl::StatusOr<Value> result) {
  if (!result.ok()) fail(result.status());
  return *std::move(result);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> C10dStore::clone() {
  return c10::make_intrusive<C10dStore>(store_, getTimeout());
}

void C10dStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  if (const absl::Status status = store_->set(key, text_of_bytes(value)); !status.ok())
    fail(status);
}

// c10d's contract: if the key is absent and `expected` is not empty, the answer is `expected`.
std::vector<uint8_t> C10dStore::compareSet(const std::string& key,
                                           const std::vector<uint8_t>& expected,
                                           const std::vector<uint8_t>& desired) {
  const std::optional<std::string> held =
      value_of(store_->exchange(key, text_of_bytes(expected), text_of_bytes(desired)));
  return held.has_value() ? bytes_of_text(*held) : expected;
}

std::vector<uint8_t> C10dStore::get(const std::string& key) {
  const absl::StatusOr<std::string> value = store_->get(key, limit(getTimeout()));
  if (!value.ok()) fail(missing(value.status()));
  return bytes_of_text(*value);
}

int64_t C10dStore::add(const std::string& key, int64_t amount) {
  return value_of(store_->add(key, amount));
}

bool C10dStore::deleteKey(const std::string& key) { return value_of(store_->erase(key)); }

bool C10dStore::check(const std::vector<std::string>& keys) {
  return value_of(store_->all_exist(keys));
}

int64_t C10dStore::getNumKeys() { return value_of(store_->count()); }

void C10dStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void C10dStore::wait(const std::vector<std::string>& keys,
                     const std::chrono::milliseconds& timeout) {
  const absl::Status status = store_->wait(keys, limit(timeout));
  if (!status.ok()) fail(missing(status));
}

}  // namespace weft
