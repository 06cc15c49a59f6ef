// Records in the rendezvous store. The first byte chooses between a member record and a list of
// death records, one per line. An accepted record must be written again and then read without a
// change.
#include "absl/strings/str_split.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rpc_internal;

void check_record(const std::string& text) {
  const MemoryStore store;
  const auto record = rpc_internal::MemberRecord::decode(store, "key", 3, text);
  if (!record.ok()) {
    require_refusal(record.status());
    return;
  }
  require(record->member.id.valid() && check_worker_name(record->member.name).ok(),
          "a member that cannot be");
  const auto again = rpc_internal::MemberRecord::decode(store, "key", 3, record->encode());
  require(again.ok() && again->encode() == record->encode() &&
              again->member.address == record->member.address,
          "a record is read as something else");
}

void check_death_records(std::string_view text) {
  const auto store = std::make_shared<MemoryStore>();
  uint64_t place = 0;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::string key = absl::StrCat("weft/group/0/death_record/", ++place);
    require(store->set(key, std::string(line)).ok(), "the store has failed");
  }
  DeathRecords list(store, "group", 0);
  const auto death_records = list.read();
  if (!death_records.ok()) require_refusal(death_records.status());
  if (death_records.ok()) {
    require(death_records->size() == place, "death records are lost");
    for (const DeathRecord& death_record : *death_records) {
      require(death_record.dead.valid(), "nobody is dead");
      // Other workers will be told the reason.
      wire::MembershipPost post, parsed;
      post.mutable_death()->set_reason(death_record.reason);
      require(parsed.ParseFromString(post.SerializeAsString()), "a reason that cannot be told");
    }
  }
  const auto decided = list.declare_dead({1, 1}, {2, 1}, text);
  if (!decided.ok()) require_refusal(decided.status());
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  if (input.flag()) {
    check_death_records(input.rest());
  } else {
    check_record(std::string(input.rest()));
  }
  return 0;
}
