#include "weft/store/store_handle.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft {
namespace {

using TimePoint = StoreCalls::TimePoint;

// A wait asks so often whether the store still answers.
constexpr absl::Duration kSlice = absl::Seconds(30);

// Clocks cannot count much further.
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);

TimePoint deadline_after(absl::Duration timeout) {
  if (timeout > kLongestTimeout) return TimePoint::max();
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::max(timeout, absl::ZeroDuration()));
}

}  // namespace

StoreHandle::StoreHandle(std::unique_ptr<StoreCalls> calls, absl::Duration timeout)
    : calls_(std::move(calls)), timeout_(timeout) {}

absl::Status StoreHandle::named(const absl::Status& status) const {
  return prepend(absl::StrCat(description(), ": "), status);
}

absl::StatusOr<wire::StoreReply> StoreHandle::ask(wire::StoreCall call, absl::Duration timeout) {
  call.set_version(kVersionOfAllCalls);
  absl::StatusOr<wire::StoreReply> reply = calls_->call(call, deadline_after(timeout));
  if (absl::IsDeadlineExceeded(reply.status())) {
    return absl::DeadlineExceededError(absl::StrCat(description(), ": no answer within ",
                                                    absl::FormatDuration(timeout), ": ",
                                                    reply.status().message()));
  }
  return checked(call, std::move(reply));
}

// Names the store in errors, and does not trust the form of an answer.
absl::StatusOr<wire::StoreReply> StoreHandle::checked(
    const wire::StoreCall& call, absl::StatusOr<wire::StoreReply> reply) const {
  if (!reply.ok()) return named(reply.status());
  if (reply->code() != 0) {
    return named({static_cast<absl::StatusCode>(reply->code()), printable(reply->error())});
  }
  const int values = call.has_read() ? call.read().keys_size() : call.has_compare_set() ? 1 : 0;
  if (reply->values_size() == values) return reply;
  return named(absl::InternalError("an answer without its values"));
}

absl::StatusOr<wire::StoreReply> StoreHandle::change(wire::StoreCall call) {
  call.set_change(random_store_number());
  return ask(std::move(call), timeout_);
}

absl::Status StoreHandle::set(const std::string& key, const std::string& value) {
  wire::StoreCall call;
  call.mutable_set()->set_key(key);
  call.mutable_set()->set_value(value);
  return change(std::move(call)).status();
}

absl::StatusOr<std::string> StoreHandle::get(const std::string& key, absl::Duration timeout) {
  wire::StoreCall::Read read;
  read.add_keys(key);
  WEFT_ASSIGN_OR_RETURN(wire::StoreReply reply,
                        wait_for(std::move(read), deadline_after(timeout), timeout));
  return std::move(*reply.mutable_values(0)->mutable_value());
}

absl::StatusOr<std::optional<std::string>> StoreHandle::try_get(const std::string& key) {
  wire::StoreCall call;
  call.mutable_read()->add_keys(key);
  WEFT_ASSIGN_OR_RETURN(wire::StoreReply reply, ask(std::move(call), timeout_));
  wire::StoreReply::Value& value = *reply.mutable_values(0);
  if (!value.exists()) return std::nullopt;
  return std::move(*value.mutable_value());
}

// One call, unless the values are too many for one answer.
absl::StatusOr<std::vector<std::optional<StoredValue>>> StoreHandle::read(
    const std::vector<std::string>& keys) {
  wire::StoreCall call;
  for (const std::string& key : keys) call.mutable_read()->add_keys(key);
  call.mutable_read();
  std::vector<std::optional<StoredValue>> values;
  absl::StatusOr<wire::StoreReply> reply = ask(std::move(call), timeout_);
  if (absl::IsResourceExhausted(reply.status()) && keys.size() > 1) {
    const auto middle = keys.begin() + static_cast<std::ptrdiff_t>(keys.size() / 2);
    WEFT_ASSIGN_OR_RETURN(values, read({keys.begin(), middle}));
    WEFT_ASSIGN_OR_RETURN(auto rest, read({middle, keys.end()}));
    std::move(rest.begin(), rest.end(), std::back_inserter(values));
    return values;
  }
  if (!reply.ok()) return reply.status();
  for (wire::StoreReply::Value& value : *reply->mutable_values()) {
    values.emplace_back();
    if (!value.exists()) continue;
    values.back() = {.value = std::move(*value.mutable_value()),
                     .author = std::move(*value.mutable_author())};
  }
  return values;
}

absl::StatusOr<int64_t> StoreHandle::add(const std::string& key, int64_t amount) {
  wire::StoreCall call;
  call.mutable_add()->set_key(key);
  call.mutable_add()->set_amount(amount);
  WEFT_ASSIGN_OR_RETURN(const wire::StoreReply reply,
                        amount == 0 ? ask(std::move(call), timeout_) : change(std::move(call)));
  return reply.number();
}

absl::StatusOr<std::string> StoreHandle::compare_set(const std::string& key,
                                                     const std::string& expected,
                                                     const std::string& desired) {
  WEFT_ASSIGN_OR_RETURN(std::optional<std::string> held, exchange(key, expected, desired));
  return std::move(held).value_or("");
}

absl::StatusOr<std::optional<std::string>> StoreHandle::exchange(const std::string& key,
                                                                 const std::string& expected,
                                                                 const std::string& desired) {
  wire::StoreCall call;
  call.mutable_compare_set()->set_key(key);
  call.mutable_compare_set()->set_expected(expected);
  call.mutable_compare_set()->set_desired(desired);
  WEFT_ASSIGN_OR_RETURN(wire::StoreReply reply, change(std::move(call)));
  if (!reply.values(0).exists()) return std::nullopt;
  return std::move(*reply.mutable_values(0)->mutable_value());
}

absl::Status StoreHandle::wait(const std::vector<std::string>& keys, absl::Duration timeout) {
  if (keys.empty()) return absl::OkStatus();
  wire::StoreCall::Read read;
  read.set_without_values(true);
  for (const std::string& key : keys) read.add_keys(key);
  return wait_for(std::move(read), deadline_after(timeout), timeout).status();
}

absl::StatusOr<bool> StoreHandle::erase(const std::string& key) {
  wire::StoreCall call;
  call.mutable_erase()->set_key(key);
  WEFT_ASSIGN_OR_RETURN(const wire::StoreReply reply, change(std::move(call)));
  return reply.number() != 0;
}

absl::StatusOr<bool> StoreHandle::all_exist(const std::vector<std::string>& keys) {
  wire::StoreCall call;
  call.mutable_read()->set_without_values(true);
  for (const std::string& key : keys) call.mutable_read()->add_keys(key);
  WEFT_ASSIGN_OR_RETURN(const wire::StoreReply reply, ask(std::move(call), timeout_));
  return std::all_of(reply.values().begin(), reply.values().end(),
                     [](const wire::StoreReply::Value& value) { return value.exists(); });
}

absl::StatusOr<int64_t> StoreHandle::count() {
  wire::StoreCall call;
  call.mutable_count();
  WEFT_ASSIGN_OR_RETURN(const wire::StoreReply reply, ask(std::move(call), timeout_));
  return reply.number();
}

absl::Status StoreHandle::reach(absl::Duration timeout) {
  wire::StoreCall call;
  call.mutable_read();
  return ask(std::move(call), timeout).status();
}

// Waits in slices, because a store whose host is gone would never answer.
absl::StatusOr<wire::StoreReply> StoreHandle::wait_for(wire::StoreCall::Read read,
                                                       TimePoint deadline, absl::Duration timeout) {
  wire::StoreCall call;
  call.set_version(kVersionOfAllCalls);
  *call.mutable_read() = std::move(read);
  call.mutable_read()->set_until(wire::StoreCall::Read::ALL_EXIST);
  absl::Status last;
  while (true) {
    absl::StatusOr<wire::StoreReply> reply =
        calls_->call(call, std::min(deadline, deadline_after(kSlice)));
    if (!absl::IsDeadlineExceeded(reply.status())) return checked(call, std::move(reply));
    last = reply.status();
    const auto left = absl::FromChrono(deadline - std::chrono::steady_clock::now());
    if (left <= absl::ZeroDuration()) break;
    WEFT_RETURN_IF_ERROR(reach(std::min(timeout_, left)));
  }
  const int keys = call.read().keys_size();
  return absl::DeadlineExceededError(
      absl::StrCat(description(), ": no '", call.read().keys(0), "'",
                   keys > 1 ? absl::StrCat(" or another of ", keys) : "", " within ",
                   absl::FormatDuration(timeout), " (", last.message(), ")"));
}

}  // namespace weft
