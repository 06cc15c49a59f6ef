#include "weft/store/store_core.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft {
namespace {

// A key for people.
std::string quoted(const std::string& key) { return absl::StrCat("'", printable(key, 200), "'"); }

bool is_wanted(wire::StoreCall::Read::Until until, bool exists) {
  return exists == (until == wire::StoreCall::Read::ALL_EXIST);
}

}  // namespace

StoreCore::Answers StoreCore::call(Ticket ticket, const std::string& author,
                                   const wire::StoreCall& call) {
  Answers answers;
  wire::StoreReply reply;
  absl::Status status = check(call);
  if (status.ok() && call.change() != 0) {
    const auto before = changes_.find(call.change());
    if (before != changes_.end() && before->second.author == author) {
      answers.emplace_back(ticket, before->second.reply);
      return answers;
    }
  }
  if (status.ok()) {
    switch (call.operation_case()) {
      case wire::StoreCall::kRead: {
        std::optional<absl::Status> read = this->read(ticket, call.read(), reply);
        if (!read.has_value()) return answers;
        status = *std::move(read);
        break;
      }
      case wire::StoreCall::kHold:
        status = hold(ticket, author, call.hold(), answers);
        if (status.ok()) return answers;
        break;
      case wire::StoreCall::kCount:
        reply.set_number(static_cast<int64_t>(entries_.size()));
        break;
      default:
        status = change(author, call, reply, answers);
        reply = answer(std::move(status), std::move(reply));
        remember(call.change(), {author, reply});
        answers.emplace_back(ticket, std::move(reply));
        return answers;
    }
  }
  answers.emplace_back(ticket, answer(std::move(status), std::move(reply)));
  return answers;
}

void StoreCore::remember(uint64_t number, Change change) {
  const size_t bytes = change.bytes();
  if (number == 0 || !changes_.emplace(number, std::move(change)).second) return;
  order_of_changes_.push_back(number);
  bytes_of_changes_ += bytes;
  while (order_of_changes_.size() > kChanges || bytes_of_changes_ > kBytesOfChanges) {
    const auto oldest = changes_.find(order_of_changes_.front());
    bytes_of_changes_ -= oldest->second.bytes();
    changes_.erase(oldest);
    order_of_changes_.pop_front();
  }
}

StoreCore::Answers StoreCore::ended(Ticket ticket) {
  Answers answers;
  if (const auto waiting = waiting_.find(ticket); waiting != waiting_.end()) stop_waiting(waiting);
  if (const auto holding = holding_.find(ticket); holding != holding_.end()) {
    const std::string key = std::move(holding->second);
    holding_.erase(holding);
    erase(key, answers);
  }
  return answers;
}

absl::Status StoreCore::check(const wire::StoreCall& call) const {
  if (call.version() == 0 || call.version() > kStoreVersion) {
    return absl::InvalidArgumentError(absl::StrCat("the call needs version ", call.version(),
                                                   " of the store's protocol, and "
                                                   "this store speaks versions 1 to ",
                                                   kStoreVersion));
  }
  if (call.instance() != 0 && call.instance() != instance_) {
    return absl::FailedPreconditionError(
        "this is another store than the one of the calls before: that one is gone, with all that "
        "it held");
  }
  return absl::OkStatus();
}

absl::Status StoreCore::check_key(const std::string& key) const {
  if (!key.empty() && key.size() <= limits_.most_key) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a key of ", key.size(), " bytes: it must have 1 to ", limits_.most_key));
}

absl::Status StoreCore::check_value(const std::string& key, const std::string& value) const {
  WEFT_RETURN_IF_ERROR(check_key(key));
  if (value.size() <= limits_.most_value) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a value of ", value.size(), " bytes for ",
                                                 quoted(key), ": it may have ",
                                                 limits_.most_value));
}

absl::Status StoreCore::change(const std::string& author, const wire::StoreCall& call,
                               wire::StoreReply& reply, Answers& answers) {
  switch (call.operation_case()) {
    case wire::StoreCall::kSet: {
      const wire::StoreCall::Set& set = call.set();
      WEFT_RETURN_IF_ERROR(check_value(set.key(), set.value()));
      WEFT_RETURN_IF_ERROR(may_change(set.key(), author, /*by_add=*/false));
      return write(set.key(), {.value = set.value(), .author = author}, answers);
    }
    case wire::StoreCall::kAdd:
      return add(author, call.add(), reply, answers);
    case wire::StoreCall::kCompareSet:
      return compare_set(author, call.compare_set(), reply, answers);
    case wire::StoreCall::kErase: {
      const std::string& key = call.erase().key();
      WEFT_RETURN_IF_ERROR(check_key(key));
      WEFT_RETURN_IF_ERROR(may_change(key, author, /*by_add=*/false));
      reply.set_number(entries_.count(key) > 0 ? 1 : 0);
      erase(key, answers);
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError("a call of the store without a known operation");
  }
}

absl::Status StoreCore::add(const std::string& author, const wire::StoreCall::Add& add,
                            wire::StoreReply& reply, Answers& answers) {
  WEFT_RETURN_IF_ERROR(check_key(add.key()));
  const auto found = entries_.find(add.key());
  int64_t number = 0;
  if (found != entries_.end() && !absl::SimpleAtoi(found->second.value, &number)) {
    return absl::InvalidArgumentError(absl::StrCat(quoted(add.key()), " holds no number"));
  }
  if (__builtin_add_overflow(number, add.amount(), &number)) {
    return absl::OutOfRangeError(
        absl::StrCat("the number under ", quoted(add.key()), " would exceed 64 bits"));
  }
  // Adding 0 to an absent key makes it, as c10d's stores do.
  if (found == entries_.end() || add.amount() != 0) {
    WEFT_RETURN_IF_ERROR(may_change(add.key(), author, /*by_add=*/true));
    Entry entry = {.value = absl::StrCat(number), .author = "", .is_number = true};
    if (found != entries_.end() && !found->second.is_number) {
      entry.author = found->second.author;
      entry.is_number = false;
    }
    WEFT_RETURN_IF_ERROR(write(add.key(), std::move(entry), answers));
  }
  reply.set_number(number);
  return absl::OkStatus();
}

absl::Status StoreCore::compare_set(const std::string& author,
                                    const wire::StoreCall::CompareSet& exchange,
                                    wire::StoreReply& reply, Answers& answers) {
  WEFT_RETURN_IF_ERROR(check_value(exchange.key(), exchange.desired()));
  const auto found = entries_.find(exchange.key());
  const bool fits = found == entries_.end() ? exchange.expected().empty()
                                            : found->second.value == exchange.expected();
  if (fits) {
    WEFT_RETURN_IF_ERROR(may_change(exchange.key(), author, /*by_add=*/false));
    WEFT_RETURN_IF_ERROR(
        write(exchange.key(), {.value = exchange.desired(), .author = author}, answers));
  }
  wire::StoreCall::Read one;
  one.add_keys(exchange.key());
  return fill(one, reply);
}

absl::Status StoreCore::hold(Ticket ticket, const std::string& author,
                             const wire::StoreCall::Hold& hold, Answers& answers) {
  WEFT_RETURN_IF_ERROR(check_value(hold.key(), hold.value()));
  if (entries_.count(hold.key()) > 0) {
    return absl::AlreadyExistsError(absl::StrCat(quoted(hold.key()), " exists"));
  }
  if (waiting() >= limits_.most_waiting) return too_many_wait();
  WEFT_RETURN_IF_ERROR(write(
      hold.key(), {.value = hold.value(), .author = author, .is_number = false, .is_held = true},
      answers));
  holding_.emplace(ticket, hold.key());
  return absl::OkStatus();
}

absl::Status StoreCore::may_change(const std::string& key, const std::string& author,
                                   bool by_add) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return absl::OkStatus();
  const Entry& entry = found->second;
  if (entry.is_held) {
    return absl::PermissionDeniedError(
        absl::StrCat(quoted(key), " exists as long as the call that made it"));
  }
  if (entry.is_number ? author.empty() || by_add : entry.author.empty() || entry.author == author) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      entry.is_number ? absl::StrCat(quoted(key), " is a number that all members add to")
                      : absl::StrCat(quoted(key), " belongs to worker '", entry.author, "'"));
}

absl::Status StoreCore::write(const std::string& key, Entry entry, Answers& answers) {
  const auto found = entries_.find(key);
  const size_t before = found == entries_.end() ? 0 : bytes_of(key, found->second);
  const size_t after = bytes_of(key, entry);
  if (bytes_ - before + after > limits_.most_bytes ||
      (found == entries_.end() && entries_.size() >= limits_.most_keys)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store is full: ", entries_.size(), " keys, ", bytes_, " bytes"));
  }
  bytes_ = bytes_ - before + after;
  if (found != entries_.end()) {
    found->second = std::move(entry);
    return absl::OkStatus();
  }
  entries_.emplace(key, std::move(entry));
  state_changed(key, true, answers);
  return absl::OkStatus();
}

void StoreCore::erase(const std::string& key, Answers& answers) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  bytes_ -= bytes_of(key, found->second);
  entries_.erase(found);
  state_changed(key, false, answers);
}

std::optional<absl::Status> StoreCore::read(Ticket ticket, const wire::StoreCall::Read& read,
                                            wire::StoreReply& reply) {
  const wire::StoreCall::Read::Until until = read.until();
  if (static_cast<size_t>(read.keys_size()) > limits_.most_keys_of_a_read) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a call for ", read.keys_size(), " keys: at most ", limits_.most_keys_of_a_read));
  }
  for (const std::string& key : read.keys()) WEFT_RETURN_IF_ERROR(check_key(key));
  std::set<std::string> missing;
  if (until != wire::StoreCall::Read::NOW) {
    for (const std::string& key : read.keys()) {
      if (!is_wanted(until, entries_.count(key) > 0)) missing.insert(key);
    }
  }
  if (missing.empty()) return fill(read, reply);
  size_t bytes = kEntryBytes;
  for (const std::string& key : read.keys()) bytes += kEntryBytes + key.size();
  if (waiting() >= limits_.most_waiting || waiting_bytes_ + bytes > limits_.most_waiting_bytes) {
    return too_many_wait();
  }
  waiting_bytes_ += bytes;
  for (const std::string& key : read.keys()) waiting_for_[key].insert(ticket);
  waiting_.emplace(ticket, Waiting{read, static_cast<int>(missing.size()), bytes});
  return std::nullopt;
}

absl::Status StoreCore::fill(const wire::StoreCall::Read& read, wire::StoreReply& reply) const {
  size_t bytes = 0;
  for (const std::string& key : read.keys()) {
    wire::StoreReply::Value& value = *reply.add_values();
    const auto found = entries_.find(key);
    if (found == entries_.end()) continue;
    value.set_exists(true);
    if (read.without_values()) continue;
    value.set_value(found->second.value);
    value.set_author(found->second.author);
    bytes += found->second.value.size() + found->second.author.size();
    if (bytes > limits_.most_reply) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the values of ", read.keys_size(), " keys exceed ", limits_.most_reply, " bytes"));
    }
  }
  return absl::OkStatus();
}

void StoreCore::state_changed(const std::string& key, bool exists, Answers& answers) {
  const auto found = waiting_for_.find(key);
  if (found == waiting_for_.end()) return;
  const std::set<Ticket> tickets = found->second;
  for (const Ticket ticket : tickets) {
    const auto waiting = waiting_.find(ticket);
    const wire::StoreCall::Read& read = waiting->second.read;
    waiting->second.missing += is_wanted(read.until(), exists) ? -1 : 1;
    if (waiting->second.missing > 0) continue;
    wire::StoreReply reply;
    absl::Status filled = fill(read, reply);
    answers.emplace_back(ticket, answer(std::move(filled), std::move(reply)));
    stop_waiting(waiting);
  }
}

void StoreCore::stop_waiting(std::map<Ticket, Waiting>::iterator waiting) {
  for (const std::string& key : waiting->second.read.keys()) {
    const auto found = waiting_for_.find(key);
    if (found == waiting_for_.end()) continue;
    found->second.erase(waiting->first);
    if (found->second.empty()) waiting_for_.erase(found);
  }
  waiting_bytes_ -= waiting->second.bytes;
  waiting_.erase(waiting);
}

absl::Status StoreCore::too_many_wait() const {
  return absl::ResourceExhaustedError(absl::StrCat(waiting(), " calls wait at the store already"));
}

wire::StoreReply StoreCore::answer(absl::Status status, wire::StoreReply reply) const {
  if (!status.ok()) {
    reply.Clear();
    reply.set_code(static_cast<uint32_t>(status.code()));
    reply.set_error(std::string(status.message()));
  }
  reply.set_instance(instance_);
  return reply;
}

}  // namespace weft
