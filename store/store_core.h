// The content of a job's store, and the calls that wait for it: a state machine without threads.
//
// A call is answered at once, or later by another call's effect. Changes that their caller repeats
// with the same number are answered as the first time, as long as not too many others have come
// since (kChanges, kBytesOfChanges).
//
// Ownership: if a certificate proves the caller's name, a key that it writes belongs to it, and
// other callers cannot change the key. Numbers that were made by Add belong to nobody. They can
// only be changed by Add while names are proven.
//
// Thread safety: none.
// Errors, in the replies:
//
// - InvalidArgument: a bad key or value, another version, no operation, or Add on a key that holds
//   no number. OutOfRange: Add beyond 64 bits.
//
// - PermissionDenied: the key belongs to another worker. AlreadyExists: Hold on a key that exists.
//
// - ResourceExhausted: a bound is met. FailedPrecondition: the call is for another store.
//
// Protocol: proto/store.proto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "weft/store/store_calls.h"

namespace weft {

struct StoreLimits {
  size_t most_key = size_t{4} << 10;
  size_t most_value = size_t{1} << 20;
  size_t most_keys = 1'000'000;
  // Of all keys, values and authors, with kEntryBytes for each key.
  size_t most_bytes = size_t{256} << 20;
  size_t most_keys_of_a_read = 65'536;
  size_t most_waiting = 16'384;  // calls that wait or hold a key
  // Of the keys for which calls wait, with kEntryBytes for each.
  size_t most_waiting_bytes = size_t{64} << 20;
  size_t most_reply = size_t{3} << 19;  // of the values that one call reads: 1.5 MiB
};

class StoreCore {
 public:
  using Ticket = uint64_t;  // the driver's number of a call
  // Calls that are answered now.
  using Answers = std::vector<std::pair<Ticket, wire::StoreReply>>;

  // How many changes are remembered, so that repetitions of them are found, and how many bytes of
  // replies.
  static constexpr size_t kChanges = 65'536;
  static constexpr size_t kBytesOfChanges = size_t{32} << 20;
  // The memory of a key besides its bytes.
  static constexpr size_t kEntryBytes = 160;

  // `instance` is not 0.
  explicit StoreCore(uint64_t instance, StoreLimits limits = {})
      : instance_(instance), limits_(limits) {}

  // `author` is the caller's name, if it is proven; otherwise it is empty.
  Answers call(Ticket ticket, const std::string& author, const wire::StoreCall& call);
  // The call is over at its caller, answered or not. A key that it holds is erased.
  Answers ended(Ticket ticket);

  // Of keys, values and authors.
  size_t bytes() const { return bytes_; }
  size_t waiting() const { return waiting_.size() + holding_.size(); }

 private:
  struct Entry {
    std::string value;
    std::string author;
    bool is_number = false;  // made by Add
    bool is_held = false;
  };
  struct Waiting {
    wire::StoreCall::Read read;
    int missing = 0;  // keys in the wrong state, each counted once
    size_t bytes = 0;
  };
  struct Change {
    std::string author;
    wire::StoreReply reply;
    size_t bytes() const { return kEntryBytes + author.size() + reply.ByteSizeLong(); }
  };
  static size_t bytes_of(const std::string& key, const Entry& entry) {
    return kEntryBytes + key.size() + entry.value.size() + entry.author.size();
  }

  absl::Status check(const wire::StoreCall& call) const;
  absl::Status check_key(const std::string& key) const;
  absl::Status check_value(const std::string& key, const std::string& value) const;
  absl::Status change(const std::string& author, const wire::StoreCall& call,
                      wire::StoreReply& reply, Answers& answers);
  absl::Status add(const std::string& author, const wire::StoreCall::Add& add,
                   wire::StoreReply& reply, Answers& answers);
  absl::Status compare_set(const std::string& author, const wire::StoreCall::CompareSet& exchange,
                           wire::StoreReply& reply, Answers& answers);
  absl::Status hold(Ticket ticket, const std::string& author, const wire::StoreCall::Hold& hold,
                    Answers& answers);
  absl::Status may_change(const std::string& key, const std::string& author, bool by_add) const;
  absl::Status write(const std::string& key, Entry entry, Answers& answers);
  void erase(const std::string& key, Answers& answers);
  // nullopt: the call waits.
  std::optional<absl::Status> read(Ticket ticket, const wire::StoreCall::Read& read,
                                   wire::StoreReply& reply);
  absl::Status fill(const wire::StoreCall::Read& read, wire::StoreReply& reply) const;
  void remember(uint64_t number, Change change);
  // Tells the calls that wait for this key.
  void state_changed(const std::string& key, bool exists, Answers& answers);
  void stop_waiting(std::map<Ticket, Waiting>::iterator waiting);
  absl::Status too_many_wait() const;
  wire::StoreReply answer(absl::Status status, wire::StoreReply reply) const;

  const uint64_t instance_;
  const StoreLimits limits_;
  std::map<std::string, Entry> entries_;
  size_t bytes_ = 0;
  std::map<Ticket, Waiting> waiting_;
  std::map<std::string, std::set<Ticket>> waiting_for_;
  std::map<Ticket, std::string> holding_;  // the keys
  size_t waiting_bytes_ = 0;
  std::map<uint64_t, Change> changes_;
  std::deque<uint64_t> order_of_changes_;
  size_t bytes_of_changes_ = 0;
};

}  // namespace weft
