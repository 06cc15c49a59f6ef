// The meta of a call, reply or post: its status, and the parts that the rooms above attach.
#include "weft/base/status.h"
#include "weft/dist_autograd/internal/autograd_wire.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/internal/status_wire.h"
#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::internal;

void check_status(const wire::Status& in) {
  const absl::Status status = decode_status(in);
  require(!status.ok(), "an error reads as OK");
  wire::Meta meta;
  require(meta.ParseFromString(encode_status_meta(status)), "an error cannot be sent on");
  const absl::Status again = decode_status(meta.status());
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
  for (const std::string& reference : meta.references()) check_part(decode_reference(reference));
  check_part(decode_creation(meta.creation()));
  check_part(decode_target(meta.target()));
  weft::wire::AutogradMetadata autograd;
  if (autograd.ParseFromString(meta.autograd())) check_part(from_wire(autograd, 8));
  return 0;
}
