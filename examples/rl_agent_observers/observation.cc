#include "weft/examples/rl_agent_observers/observation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/rl_agent_observers/cart_pole.h"

namespace weft::examples {
namespace {

constexpr float kLargestNumber = 1e6;

[[noreturn]] void refuse(std::string text) {
  throw RpcError(absl::InvalidArgumentError(absl::StrCat("an observer's ", text)));
}

void check(const char* what, const at::Tensor& tensor, at::ScalarType type, at::IntArrayRef shape) {
  if (tensor.defined() && tensor.scalar_type() == type && tensor.sizes() == shape &&
      tensor.is_contiguous() && tensor.is_cpu()) {
    if (type != at::kFloat) return;
    const float* number = tensor.const_data_ptr<float>();
    const auto* wrong = std::find_if_not(  // NaN must be found too, so not `>`
        number, number + tensor.numel(), [](float x) { return std::abs(x) <= kLargestNumber; });
    if (wrong == number + tensor.numel()) return;
    refuse(absl::StrCat(what, " hold ", *wrong, "; numbers up to ", kLargestNumber, " can be"));
  }
  const std::string got =
      tensor.defined()
          ? absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "] of ",
                         c10::toString(tensor.scalar_type()), " on ", tensor.device().str(),
                         tensor.is_contiguous() ? "" : ", with gaps")
          : "no tensor";
  refuse(absl::StrCat(what, " must be [", absl::StrJoin(shape, ", "), "] of ", c10::toString(type),
                      " on cpu, but it sent ", got));
}

int64_t rows_of(const at::Tensor& places) {
  const int64_t rows = places.defined() && places.dim() > 0 ? places.size(0) : 0;
  check("places", places, at::kLong, {rows});
  return rows;
}

}  // namespace

void check_states(const at::Tensor& places, const at::Tensor& states) {
  check("states", states, at::kFloat, {rows_of(places), CartPole::kState});
}

void check_rewards(const at::Tensor& places, const at::Tensor& rewards, const at::Tensor& ended) {
  check("rewards", rewards, at::kFloat, {rows_of(places)});
  check("ended", ended, at::kBool, {rows_of(places)});
}

std::vector<int64_t> distinct_places(const at::Tensor& places) {
  const auto* place = places.const_data_ptr<int64_t>();
  std::vector<int64_t> sorted(place, place + places.size(0));
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse(absl::StrCat("places hold ", *twice, " more than once"));
  return sorted;
}

}  // namespace weft::examples
