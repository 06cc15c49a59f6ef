// Messages about backward passes. The first byte says whether the rest is a post or piggybacked on
// a call. An accepted message must be encoded again and then decoded without a change.
#include "weft/dist_autograd/passes/autograd_wire.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::dist_autograd_internal;

constexpr uint32_t kTensors = 16;

wire::AutogradPost written(
    const dist_autograd_internal::AutogradMessage& message,
    const std::vector<dist_autograd_internal::AutogradMessage>& piggybacked) {
  wire::AutogradPost post;
  dist_autograd_internal::to_wire(message, post);
  for (const dist_autograd_internal::AutogradMessage& each : piggybacked) {
    dist_autograd_internal::to_wire(each, *post.add_piggybacked());
  }
  return post;
}

absl::Status check_post(std::string_view bytes) {
  wire::AutogradPost post;
  if (!post.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not parsed");
  }
  const auto message = dist_autograd_internal::from_wire(post);
  if (!message.ok()) return message.status();
  const auto piggybacked = dist_autograd_internal::piggybacked_from_wire(post);
  if (!piggybacked.ok()) return piggybacked.status();
  require(dist_autograd_internal::context_of(*message).valid(), "a message of no context");
  const dist_autograd_internal::PassId* pass = pass_of(*message);
  require(pass == nullptr || pass->valid(), "a message of no pass");

  const std::string first = written(*message, *piggybacked).SerializeAsString();
  wire::AutogradPost parsed;
  require(parsed.ParseFromString(first), "what was written cannot be parsed");
  const auto again = dist_autograd_internal::from_wire(parsed);
  const auto piggybacked_again = dist_autograd_internal::piggybacked_from_wire(parsed);
  require(again.ok() && piggybacked_again.ok(), "what was written is refused");
  require(dist_autograd_internal::tensors_expected(*again) ==
              dist_autograd_internal::tensors_expected(*message),
          "other tensors are expected");
  require(written(*again, *piggybacked_again).SerializeAsString() == first,
          "what was written is read as something else");
  return absl::OkStatus();
}

absl::Status check_metadata(std::string_view bytes) {
  wire::AutogradMetadata in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not parsed");
  }
  const auto metadata = dist_autograd_internal::from_wire(in, kTensors);
  if (!metadata.ok()) return metadata.status();
  for (const uint32_t tensor : metadata->requires_grad) {
    require(tensor < kTensors, "a tensor that the call does not have");
  }
  wire::AutogradMetadata out;
  dist_autograd_internal::to_wire(*metadata, out);
  const auto again = dist_autograd_internal::from_wire(out, kTensors);
  require(again.ok(), "what was written is refused");
  wire::AutogradMetadata out_again;
  dist_autograd_internal::to_wire(*again, out_again);
  require(out.SerializeAsString() == out_again.SerializeAsString(),
          "what was written is read as something else");
  return absl::OkStatus();
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  const absl::Status status =
      input.flag() ? check_metadata(input.rest()) : check_post(input.rest());
  if (!status.ok()) require_refusal(status);
  return 0;
}
