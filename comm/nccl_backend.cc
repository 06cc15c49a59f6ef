// Wraps LibTorch's NCCL. This is the only file that includes the headers of CUDA and NCCL.
#include "weft/comm/nccl_backend.h"

#include <exception>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "absl/strings/str_cat.h"
#include "weft/comm/internal/exception_text.h"

namespace weft {
namespace {

// Calls shutdown() in its destructor. LibTorch's class expects its user to call shutdown() first.
// Otherwise it warns and cuts off operations that are still under way.
class NcclBackend : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;
  ~NcclBackend() override {
    try {
      shutdown();
    } catch (const std::exception& failed) {
      TORCH_WARN("nccl: rank ", getRank(), " of ", getSize(),
                 " did not end well: ", comm_internal::text_of(failed));
    }
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> create_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout) {
  if (size < 1 || rank < 0 || rank >= size) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("nccl: there is no rank ", rank, " in a group of ", size));
  }
  if (c10::cuda::device_count() == 0) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("nccl: rank ", rank, " of ", size, " sees no CUDA device"));
  }
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<NcclBackend>(store, rank, size, std::move(options));
}

}  // namespace weft
