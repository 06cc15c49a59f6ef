#include "weft/dist_autograd/internal/gradient_frame.h"

#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/local_pass.h"
#include "weft/dist_autograd/internal/message_memory.h"
#include "weft/dist_autograd/passes/autograd_wire.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/user_call.h"

namespace weft::dist_autograd_internal {
namespace {

absl::Status append_gradients(GradMessage& message, std::vector<at::Tensor>& tensors) {
  for (GradEntry& entry : message.entries) {
    if (entry.present.empty()) continue;
    auto* payload = dynamic_cast<TensorPayload*>(entry.gradients.get());
    if (payload == nullptr || payload->tensors.size() != entry.present.size()) {
      return absl::InternalError("a message announces other gradients than it has");
    }
    tensors.insert(tensors.end(), std::make_move_iterator(payload->tensors.begin()),
                   std::make_move_iterator(payload->tensors.end()));
    payload->tensors.clear();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Frame> to_frame(AutogradMessage message, const Piggybacked& piggybacked) {
  MessageMemory memory;
  auto& post = *memory.make<wire::AutogradPost>();
  to_wire(message, post);
  for (const AutogradMessage& each : piggybacked) {
    to_wire(each, *post.add_piggybacked());
  }
  Frame frame;
  post.SerializeToString(&frame.body);
  std::vector<at::Tensor> tensors;
  if (auto* grad = std::get_if<GradMessage>(&message)) {
    WEFT_RETURN_IF_ERROR(append_gradients(*grad, tensors));
  }
  absl::Status encoded;
  WEFT_RETURN_IF_ERROR(rpc_internal::run_user_code(
      [&] { encoded = encode_tensors(std::move(tensors), TensorSendOptions(), frame); }));
  WEFT_RETURN_IF_ERROR(encoded);
  return frame;
}

absl::StatusOr<AutogradBatch> from_frame(const Frame& frame) {
  MessageMemory memory;
  auto& post = *memory.make<wire::AutogradPost>();
  const uint32_t size = frame.header.value_bytes;
  if (size > frame.body.size() || size > std::numeric_limits<int>::max() ||
      !post.ParseFromArray(frame.body.data(), static_cast<int>(size))) {
    return absl::InvalidArgumentError("autograd message: cannot be parsed");
  }
  WEFT_ASSIGN_OR_RETURN(AutogradMessage message, from_wire(post));
  WEFT_ASSIGN_OR_RETURN(Piggybacked piggybacked, piggybacked_from_wire(post));
  absl::StatusOr<std::vector<at::Tensor>> tensors;
  WEFT_RETURN_IF_ERROR(rpc_internal::run_user_code([&] { tensors = decode_tensors(frame); }));
  WEFT_RETURN_IF_ERROR(tensors.status());
  if (tensors->size() != tensors_expected(message)) {
    return absl::InvalidArgumentError(absl::StrCat("autograd message: ", tensors->size(),
                                                   " gradients instead of ",
                                                   tensors_expected(message)));
  }
  if (auto* grad = std::get_if<GradMessage>(&message)) {
    auto next = std::make_move_iterator(tensors->begin());
    for (GradEntry& entry : grad->entries) {
      if (entry.present.empty()) continue;
      const auto end = next + static_cast<ptrdiff_t>(entry.present.size());
      entry.gradients = std::make_unique<TensorPayload>(std::vector<at::Tensor>(next, end));
      next = end;
    }
  }
  return AutogradBatch{std::move(piggybacked), std::move(message)};
}

}  // namespace weft::dist_autograd_internal
