#include "weft/dist_optim/averaging_group.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"

namespace weft {
namespace {

// The number of rounds that another member may be behind, which are those between two steps. The
// averager keeps as many.
constexpr size_t kBehind = 8;

// Rows of the table.
constexpr int64_t kPresent = 0;
constexpr int64_t kStep = 1;
constexpr int64_t kFlag = 2;
constexpr int64_t kRows = 3;

size_t place_of(const std::string& name, const std::vector<std::string>& names) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

// The position as values that a round can average.
at::Tensor tensor_of(const AveragingGroup::Position& position) {
  return at::tensor(position, at::kDouble);
}

AveragingGroup::Position position_of(const at::Tensor& tensor) {
  const auto* value = tensor.const_data_ptr<double>();
  AveragingGroup::Position position;
  for (int64_t i = 0; i < tensor.numel(); ++i) position.push_back(std::llround(value[i]));
  return position;
}

}  // namespace

AveragingGroup::AveragingGroup(Options options)
    : options_(std::move(options)), present_(options_.names) {
  if (place_of(options_.self, options_.names) == options_.names.size()) {
    throw std::invalid_argument(absl::StrCat(options_.self, " is no member of the group"));
  }
}

void AveragingGroup::connect(RRef<ParameterAverager> averager, int64_t round) {
  averager_ = std::move(averager);
  ended_.erase(ended_.upper_bound(round), ended_.end());
  std::vector<AveragedRound> known;
  for (auto one = ended_.rbegin(); one != ended_.rend() && known.size() < kBehind; ++one) {
    known.push_back({one->first, one->second});
  }
  if (!known.empty()) averager_.rpc_sync(&ParameterAverager::restore, std::move(known));
}

size_t AveragingGroup::place() const { return place_of(options_.self, present_); }

AveragingGroup::Round AveragingGroup::average(int64_t number, Contribution mine) {
  const auto self = static_cast<int64_t>(place_of(options_.self, options_.names));
  const auto members = static_cast<int64_t>(options_.names.size());
  at::Tensor table = at::zeros({kRows, members}, at::kDouble);
  table[kPresent][self].fill_(1);
  table[kStep][self].fill_(static_cast<double>(mine.step));
  table[kFlag][self].fill_(mine.flag ? 1.0 : 0.0);
  mine.values.push_back(std::move(table));
  mine.values.push_back(tensor_of(mine.position));
  return read(number, averager_.with({.timeout = options_.call_timeout})
                          .rpc_sync(&ParameterAverager::average, number, std::move(mine.values)));
}

std::optional<AveragingGroup::Round> AveragingGroup::enter() {
  try {
    AveragedRound newest =
        averager_.with({.timeout = options_.call_timeout}).rpc_sync(&ParameterAverager::enter);
    return read(newest.number, std::move(newest.average));
  } catch (const RpcError& error) {
    if (error.code() != absl::StatusCode::kNotFound) throw;
    return std::nullopt;
  }
}

void AveragingGroup::forget_before(int64_t round) {
  ended_.erase(ended_.begin(), ended_.lower_bound(round - static_cast<int64_t>(kBehind)));
}

void AveragingGroup::leave() { averager_.rpc_sync(&ParameterAverager::leave); }

AveragingGroup::Round AveragingGroup::read(int64_t number, std::vector<at::Tensor> average) {
  ended_[number] = average;
  Round round{.number = number, .position = position_of(average.back())};
  average.pop_back();
  const at::Tensor table = std::move(average.back());
  average.pop_back();
  round.flag = table[kFlag].sum().item<double>() > 0;
  round.average = std::move(average);

  const std::vector<std::string>& names = options_.names;
  std::vector<std::string> now;
  std::vector<std::string> lost;
  for (size_t i = 0; i < names.size(); ++i) {
    const double part = table[kPresent][static_cast<int64_t>(i)].item<double>();
    const double last = table[kStep][static_cast<int64_t>(i)].item<double>();
    if (part > 0) {
      now.push_back(names[i]);
      if (names[i] == options_.self) round.step = static_cast<uint64_t>(std::llround(last / part));
    } else if (names[i] != options_.self && place_of(names[i], present_) < present_.size()) {
      lost.push_back(names[i]);
    }
  }
  present_ = std::move(now);
  if (!lost.empty() && options_.on_loss) options_.on_loss(lost);
  return round;
}

}  // namespace weft
