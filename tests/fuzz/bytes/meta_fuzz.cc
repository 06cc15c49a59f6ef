// The meta of a call, reply or post: its status, and the parts that the rooms above attach.
#include "weft/base/status.h"
#include "weft/dist_autograd/passes/autograd_wire.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rpc_internal;
using namespace weft::rref_internal;
using namespace weft::dist_autograd_internal;

void check_status(const wire::Status& in) {
  const absl::Status status = rpc_internal::decode_status(in);
  require(!status.ok(), "an error reads as OK");
  wire::Meta meta;
  require(meta.ParseFromString(rpc_internal::encode_status_meta(status)),
          "an error cannot be sent on");
  const absl::Status again = rpc_internal::decode_status(meta.status());
  require(again == status, "an error changes on its way");
  require(ran_of(again) == ran_of(status) && worker_of(again) == worker_of(status) &&
              trail_of(again) == trail_of(status),
          "the facts of an error change on its way");
}

template <class Decoded>
void check_part(const Decoded& decoded) {
  if (!decoded.ok()) require_refusal(decoded.status());
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  weft::wire::Meta meta;
  if (!meta.ParseFromArray(data, static_cast<int>(size))) return 0;
  check_status(meta.status());
  for (const std::string& reference : meta.references())
    check_part(weft::rref_internal::decode_reference(reference));
  check_part(weft::rref_internal::decode_creation(meta.creation()));
  check_part(weft::rref_internal::decode_target(meta.target()));
  weft::wire::AutogradMetadata autograd;
  if (autograd.ParseFromString(meta.autograd()))
    check_part(weft::dist_autograd_internal::from_wire(autograd, 8));
  return 0;
}
