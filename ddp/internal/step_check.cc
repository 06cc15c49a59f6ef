#include "weft/ddp/internal/step_check.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace weft::ddp_internal {

void verify_step(ProcessGroup& group, const StepDescription& mine, bool shadows,
                 at::Device device) {
  std::vector<int64_t> numbers = {shadows ? 1 : 0};
  for (const StepDescription::Item& item : mine.items) numbers.push_back(item.value);
  std::vector<at::Tensor> all = group.all_gather(at::tensor(numbers, at::kLong).to(device));
  const int64_t* first = nullptr;
  size_t first_rank = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    all[rank] = all[rank].to(at::kCPU);
    const int64_t* const numbers_there = all[rank].const_data_ptr<int64_t>();
    if (numbers_there[0] != 0) continue;
    if (first == nullptr) {
      first = numbers_there;
      first_rank = rank;
      continue;
    }
    for (size_t i = 0; i < mine.items.size(); ++i) {
      if (first[i + 1] == numbers_there[i + 1]) continue;
      C10_THROW_ERROR(ValueError,
                      absl::StrCat("DistributedDataParallel: before a step the copies differ: ",
                                   mine.items[i].name, " is ", first[i + 1], " on rank ",
                                   first_rank, " and ", numbers_there[i + 1], " on rank ", rank));
    }
  }
}

}  // namespace weft::ddp_internal
