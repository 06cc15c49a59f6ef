#include "weft/examples/parameter_server/trainer_group.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "weft/base/rpc_error.h"

namespace weft::examples {
namespace {

// Longer than the averager's own limit (server.h), so that the averager completes a round first.
constexpr auto kRoundCall = std::chrono::seconds(180);

// The number of rounds that another trainer may be behind, which are those between two steps. The
// averager keeps as many.
constexpr size_t kBehind = 8;

// Rows of the table.
constexpr int64_t kPresent = 0;
constexpr int64_t kNumber = 1;
constexpr int64_t kFlag = 2;

size_t place_of(const std::string& name, const std::vector<std::string>& names) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

// The position as values that a round can average.
at::Tensor tensor_of(const Position& position) {
  return at::tensor({static_cast<int64_t>(position.next), position.epoch, position.step,
                     position.steps, position.round},
                    at::kDouble);
}

// All trainers give the same position, and the mean of equal whole numbers is exact.
Position position_of(const at::Tensor& tensor) {
  const auto* value = tensor.const_data_ptr<double>();
  Position position;
  position.next = static_cast<Position::Next>(value[0]);
  position.epoch = static_cast<int64_t>(value[1]);
  position.step = static_cast<int64_t>(value[2]);
  position.steps = static_cast<int64_t>(value[3]);
  position.round = static_cast<int64_t>(value[4]);
  return position;
}

}  // namespace

TrainerGroup::TrainerGroup(std::vector<std::string> names, std::string self, OnLoss on_loss)
    : names_(std::move(names)),
      self_(std::move(self)),
      on_loss_(std::move(on_loss)),
      present_(names_) {}

void TrainerGroup::connect(RRef<ParameterAverager> averager, int64_t round) {
  averager_ = std::move(averager);
  ended_.erase(ended_.upper_bound(round), ended_.end());
  std::vector<AveragedRound> known;
  for (auto one = ended_.rbegin(); one != ended_.rend() && known.size() < kBehind; ++one) {
    known.push_back({one->first, one->second});
  }
  if (!known.empty()) averager_.rpc_sync(&ParameterAverager::restore, std::move(known));
}

size_t TrainerGroup::place() const { return place_of(self_, present_); }

TrainerGroup::Round TrainerGroup::average(const Position& position, uint64_t number,
                                          std::vector<at::Tensor> values, bool flag) {
  const auto self = static_cast<int64_t>(place_of(self_, names_));
  at::Tensor table = at::zeros({3, static_cast<int64_t>(names_.size())}, at::kDouble);
  table[kPresent][self].fill_(1);
  table[kNumber][self].fill_(static_cast<double>(number));
  table[kFlag][self].fill_(flag ? 1.0 : 0.0);
  values.push_back(std::move(table));
  values.push_back(tensor_of(position));
  const int64_t round = position.round + 1;
  return read(round, averager_.with({.timeout = kRoundCall})
                         .rpc_sync(&ParameterAverager::average, round, std::move(values)));
}

std::optional<TrainerGroup::Round> TrainerGroup::enter() {
  try {
    AveragedRound newest =
        averager_.with({.timeout = kRoundCall}).rpc_sync(&ParameterAverager::enter);
    return read(newest.number, std::move(newest.average));
  } catch (const RpcError& error) {
    if (error.code() != absl::StatusCode::kNotFound) throw;
    return std::nullopt;
  }
}

void TrainerGroup::forget_before(int64_t round) {
  ended_.erase(ended_.begin(), ended_.lower_bound(round - static_cast<int64_t>(kBehind)));
}

void TrainerGroup::leave() { averager_.rpc_sync(&ParameterAverager::leave); }

TrainerGroup::Round TrainerGroup::read(int64_t number, std::vector<at::Tensor> average) {
  ended_[number] = average;
  Round round;
  round.position = position_of(average.back());
  average.pop_back();
  const at::Tensor table = std::move(average.back());
  average.pop_back();
  round.flag = table[kFlag].sum().item<double>() > 0;
  round.average = std::move(average);

  std::vector<std::string> now;
  std::vector<std::string> lost;
  for (size_t i = 0; i < names_.size(); ++i) {
    const double share = table[kPresent][static_cast<int64_t>(i)].item<double>();
    const double last = table[kNumber][static_cast<int64_t>(i)].item<double>();
    if (share > 0) {
      now.push_back(names_[i]);
      if (names_[i] == self_) round.number = static_cast<uint64_t>(std::llround(last / share));
    } else if (place_of(names_[i], present_) < present_.size()) {
      lost.push_back(names_[i]);
    }
  }
  present_ = std::move(now);
  if (!lost.empty() && on_loss_) on_loss_(lost);
  return round;
}

}  // namespace weft::examples
