// Calls of a store, as members of the job could send them. Each call is preceded by a byte for its
// caller and two for its length. A call of length 0 ends the oldest call that waits.
#include <set>

#include "weft/store/store_core.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

constexpr StoreLimits kLimits = {.most_key = 20,
                                 .most_value = 50,
                                 .most_keys = 6,
                                 .most_bytes = 1500,
                                 .most_keys_of_a_read = 5,
                                 .most_waiting = 5,
                                 .most_waiting_bytes = 3000,
                                 .most_reply = 120};

class Run {
 public:
  void call(const std::string& author, const wire::StoreCall& call) {
    const StoreCore::Ticket ticket = next_++;
    open_.emplace(ticket, call);
    take(core_.call(ticket, author, call));
    check();
  }
  void end_oldest() {
    if (open_.empty()) return;
    const StoreCore::Ticket ticket = open_.begin()->first;
    open_.erase(ticket);
    take(core_.ended(ticket));
    check();
  }
  void end_all() {
    while (!open_.empty()) end_oldest();
    require(core_.waiting() == 0, "a call waits that has ended");
    for (const std::string& key : keys_) {
      wire::StoreCall erase = new_call();
      erase.mutable_erase()->set_key(key);
      for (const char* author : {"", "a", "b"}) call(author, erase);
    }
    // A number stays if names are proven, unless a caller without a name has erased it.
    require(count() == 0 && core_.bytes() == 0, "an empty store has content");
  }

 private:
  static wire::StoreCall new_call() {
    wire::StoreCall call;
    call.set_version(kStoreVersion);
    return call;
  }

  void take(const StoreCore::Answers& answers) {
    for (const auto& [ticket, reply] : answers) {
      const auto call = open_.find(ticket);
      require(call != open_.end(), "an answer to no open call");
      require(reply.instance() == 1, "an answer without the store's name");
      if (reply.code() == 0) note(call->second);
      open_.erase(call);
    }
  }
  void note(const wire::StoreCall& call) {
    if (call.has_set()) keys_.insert(call.set().key());
    if (call.has_add()) keys_.insert(call.add().key());
    if (call.has_compare_set()) keys_.insert(call.compare_set().key());
  }

  bool exists(const std::string& key) {
    wire::StoreCall read = new_call();
    read.mutable_read()->add_keys(key);
    read.mutable_read()->set_without_values(true);
    const StoreCore::Answers answers = core_.call(next_++, "", read);
    require(answers.size() == 1 && answers[0].second.code() == 0, "a read is not answered");
    return answers[0].second.values(0).exists();
  }
  int64_t count() {
    wire::StoreCall count = new_call();
    count.mutable_count();
    return core_.call(next_++, "", count).front().second.number();
  }

  void check() {
    require(core_.bytes() <= kLimits.most_bytes, "too many bytes");
    require(core_.waiting() <= kLimits.most_waiting, "too many calls wait");
    require(core_.waiting() == open_.size(), "an open call does not wait");
    for (const auto& [ticket, call] : open_) {
      if (call.has_hold()) {
        require(exists(call.hold().key()), "a held key does not exist");
        continue;
      }
      require(call.has_read(), "a change waits");
      const bool wanted = call.read().until() == wire::StoreCall::Read::ALL_EXIST;
      bool must_wait = false;
      for (const std::string& key : call.read().keys()) must_wait |= exists(key) != wanted;
      require(must_wait, "a call waits for nothing");
    }
  }

  StoreCore core_{1, kLimits};
  StoreCore::Ticket next_ = 1;
  std::map<StoreCore::Ticket, wire::StoreCall> open_;
  std::set<std::string> keys_;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  Run run;
  while (rest.size() >= 3) {
    const char* const authors[] = {"", "a", "b"};
    const std::string author = authors[static_cast<uint8_t>(rest[0]) % 3];
    const size_t length = static_cast<uint8_t>(rest[1]) | static_cast<uint8_t>(rest[2]) << 8;
    rest.remove_prefix(3);
    if (length == 0) {
      run.end_oldest();
      continue;
    }
    weft::wire::StoreCall call;
    if (!call.ParseFromString(std::string(rest.substr(0, length)))) return 0;
    rest.remove_prefix(std::min(length, rest.size()));
    run.call(author, call);
  }
  run.end_all();
  return 0;
}
