#include "weft/rpc/transport/status_wire.h"

#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"

namespace weft::rpc_internal {
namespace {

// Bytes of a peer's error trail that are kept.
constexpr size_t kMostTrail = 4096;

}  // namespace

void encode_status(const absl::Status& status, wire::Status& out) {
  out.set_code(static_cast<int>(status.code()));
  out.set_message(std::string(status.message()));
  out.set_ran(static_cast<uint32_t>(ran_of(status)));
  out.set_worker(worker_of(status));
  out.set_trail(trail_of(status));
}

absl::Status decode_status(const wire::Status& in) {
  auto code = static_cast<absl::StatusCode>(in.code());
  if (in.code() <= 0 || in.code() > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    code = absl::StatusCode::kUnknown;
  }
  absl::Status status(code, in.message());
  status = with_ran(std::move(status), in.ran() <= 2 ? static_cast<Ran>(in.ran()) : Ran::kMaybe);
  status = raised_at(std::move(status), printable(in.worker()));
  if (!in.trail().empty()) status = add_hop(std::move(status), printable(in.trail(), kMostTrail));
  return status;
}

std::string encode_status_meta(const absl::Status& status) {
  wire::Meta meta;
  encode_status(status, *meta.mutable_status());
  return meta.SerializeAsString();
}

}  // namespace weft::rpc_internal
