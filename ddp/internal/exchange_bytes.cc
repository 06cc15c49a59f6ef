#include "weft/ddp/internal/exchange_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace weft::ddp_internal {
namespace {

// A rank's bytes, padded to the longest rank's length, because collectives need equal sizes.
struct Padded {
  std::vector<int64_t> lengths;  // by rank
  at::Tensor bytes;
};

Padded pad(ProcessGroup& group, const std::string& bytes, const c10::Device& device) {
  Padded result;
  const at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()),
                                     at::TensorOptions(at::kLong).device(device));
  for (const at::Tensor& one : group.all_gather(length)) {
    result.lengths.push_back(one.item<int64_t>());
  }
  const int64_t longest = *std::max_element(result.lengths.begin(), result.lengths.end());
  const at::Tensor padded = at::zeros({std::max<int64_t>(longest, 1)}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), bytes.data(), bytes.size());
  result.bytes = padded.to(device);
  return result;
}

std::vector<std::string> unpad(const std::vector<at::Tensor>& tensors,
                               const std::vector<int64_t>& lengths) {
  std::vector<std::string> result;
  for (size_t rank = 0; rank < tensors.size(); ++rank) {
    const at::Tensor bytes = tensors[rank].cpu();
    result.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), lengths[rank]);
  }
  return result;
}

}  // namespace

std::vector<std::string> all_gather_bytes(ProcessGroup& group, const std::string& bytes,
                                          const c10::Device& device) {
  const Padded padded = pad(group, bytes, device);
  return unpad(group.all_gather(padded.bytes), padded.lengths);
}

std::vector<std::string> gather_bytes(ProcessGroup& group, const std::string& bytes, int to,
                                      const c10::Device& device) {
  const Padded padded = pad(group, bytes, device);
  return unpad(group.gather(padded.bytes, to), padded.lengths);
}

}  // namespace weft::ddp_internal
