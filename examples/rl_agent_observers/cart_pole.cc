#include "weft/examples/rl_agent_observers/cart_pole.h"

#include <cmath>
#include <numbers>

namespace weft::examples {
namespace {

constexpr double kGravity = 9.8;
constexpr double kPoleMass = 0.1;
constexpr double kMass = 1.0 + kPoleMass;  // with the mass of the cart
constexpr double kHalfLength = 0.5;
constexpr double kForce = 10.0;
constexpr double kTick = 0.02;  // seconds per step
constexpr double kFarthest = 2.4;
constexpr double kSteepest = 12 * 2 * std::numbers::pi / 360;

}  // namespace

void CartPole::begin() {
  std::uniform_real_distribution<double> near_zero(-0.05, 0.05);
  for (double& number : state_) number = near_zero(random_);
  steps_ = 0;
}

void CartPole::begin_at(const State& state) {
  state_ = state;
  steps_ = 0;
}

bool CartPole::step(int64_t action) {
  auto& [position, velocity, angle, turn] = state_;
  const double force = action == 1 ? kForce : -kForce;
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const double pull = (force + kPoleMass * kHalfLength * turn * turn * sine) / kMass;
  const double turn_gain = (kGravity * sine - cosine * pull) /
                           (kHalfLength * (4.0 / 3.0 - kPoleMass * cosine * cosine / kMass));
  const double gain = pull - kPoleMass * kHalfLength * turn_gain * cosine / kMass;
  position += kTick * velocity;
  velocity += kTick * gain;
  angle += kTick * turn;
  turn += kTick * turn_gain;
  ++steps_;
  return std::abs(position) > kFarthest || std::abs(angle) > kSteepest || steps_ >= kLongest;
}

}  // namespace weft::examples
