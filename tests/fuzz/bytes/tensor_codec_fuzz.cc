// The tensors of a frame. The input is the number of payloads, each with u16 size and bytes, and
// then the body. Accepted tensors must match their headers, and must arrive again when they are
// sent on.
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/transport/buffer_pool.h"
#include "weft/rpc/user_call.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  if (plain.nbytes() == 0) return {};
  return std::string(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
}

void require_same(const at::Tensor& a, const at::Tensor& b) {
  require(a.defined() == b.defined(), "a tensor is lost");
  if (!a.defined()) return;
  require(a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.layout() == b.layout(),
          "a tensor changes");
  require(!a.requires_grad(), "a tensor that requires grad");
  if (a.layout() != at::kSparse) {
    require(bytes_of(a) == bytes_of(b), "values change");
    return;
  }
  require(a.is_coalesced() == b.is_coalesced(), "indices change their order");
  require(bytes_of(a._indices()) == bytes_of(b._indices()), "indices change");
  require(bytes_of(a._values()) == bytes_of(b._values()), "values change");
}

// LibTorch's kernels rely on the flag when they search and merge indices.
void require_coalesced(const at::Tensor& tensor) {
  const at::Tensor indices = tensor._indices();
  const auto position = indices.accessor<int64_t, 2>();
  for (int64_t i = 1; i < indices.size(1); ++i) {
    bool ascends = false;
    for (int64_t d = 0; d < indices.size(0) && !ascends; ++d) {
      require(position[d][i - 1] <= position[d][i], "coalesced indices out of order");
      ascends = position[d][i - 1] < position[d][i];
    }
    require(ascends, "coalesced indices that repeat");
  }
}

void send_on(const std::vector<at::Tensor>& tensors) {
  Frame frame;
  require(encode_tensors(tensors, TensorSendOptions(), frame).ok(), "what came cannot be sent on");
  const auto again = decode_tensors(frame);
  require(again.ok(), "what was sent on is refused");
  require(again->size() == tensors.size(), "tensors are lost");
  for (size_t i = 0; i < tensors.size(); ++i) {
    require_same(tensors[i], (*again)[i]);
    if (tensors[i].defined() && tensors[i].is_sparse() && tensors[i].is_coalesced()) {
      require_coalesced(tensors[i]);
    }
  }
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  weft::rpc_internal::BufferPool pool(0);
  weft::Frame frame;
  frame.payloads.resize(input.below(5));
  for (weft::Payload& payload : frame.payloads) {
    const std::string_view content = input.chunk();
    payload = pool.take(content.size());
    std::memcpy(payload.data, content.data(), content.size());
  }
  frame.body = std::string(input.rest());
  absl::StatusOr<std::vector<at::Tensor>> tensors;
  const absl::Status ran =
      weft::rpc_internal::run_user_code([&] { tensors = weft::decode_tensors(frame); });
  require(ran.ok(), "LibTorch was asked for something that it refuses");
  if (tensors.ok()) {
    send_on(*tensors);
  } else {
    require_refusal(tensors.status());
  }
  return 0;
}
