#include "weft/examples/parameter_server/trainer_group.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>

namespace weft::examples {
namespace {

// The averager's own limit (server.h) ends a round first.
constexpr auto kRoundCall = std::chrono::seconds(180);

size_t place_of(const std::string& name, const std::vector<std::string>& names) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

}  // namespace

TrainerGroup::TrainerGroup(RRef<ParameterAverager> averager, std::vector<std::string> names,
                           std::string self, OnLoss on_loss)
    : averager_(std::move(averager)),
      names_(std::move(names)),
      self_(std::move(self)),
      on_loss_(std::move(on_loss)),
      present_(names_) {}

size_t TrainerGroup::place() const { return place_of(self_, present_); }

std::vector<at::Tensor> TrainerGroup::average(std::vector<at::Tensor> values) {
  at::Tensor flags = at::zeros({static_cast<int64_t>(names_.size())});
  flags[static_cast<int64_t>(place_of(self_, names_))].fill_(1);
  values.push_back(std::move(flags));
  values = averager_.with({.timeout = kRoundCall})
               .rpc_sync(&ParameterAverager::average, ++round_, std::move(values));
  note_present(values.back());
  values.pop_back();
  return values;
}

bool TrainerGroup::meet(bool flag) {
  at::Tensor said = at::zeros({1});
  if (flag) said.fill_(1);
  return average({said})[0].item<float>() > 0;
}

void TrainerGroup::leave() { averager_.rpc_sync(&ParameterAverager::leave); }

void TrainerGroup::note_present(const at::Tensor& flags) {
  std::vector<std::string> now;
  std::vector<std::string> lost;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (flags[static_cast<int64_t>(i)].item<float>() > 0) {
      now.push_back(names_[i]);
    } else if (place_of(names_[i], present_) < present_.size()) {
      lost.push_back(names_[i]);
    }
  }
  present_ = std::move(now);
  if (!lost.empty() && on_loss_) on_loss_(lost);
}

}  // namespace weft::examples
