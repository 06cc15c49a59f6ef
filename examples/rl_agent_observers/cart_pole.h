// CartPole-v1: keep a pole upright by pushing the cart that it stands on.
//
// The equations are those of Barto, Sutton and Anderson, "Neuronlike adaptive elements that can
// solve difficult learning control problems" (1983). Constants, start and end are those of
// gymnasium's CartPole-v1. tests/examples compares with it.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <random>

namespace weft::examples {

class CartPole {
 public:
  static constexpr int64_t kState = 4;    // numbers in a state
  static constexpr int64_t kActions = 2;  // 0 pushes to the left, 1 to the right
  static constexpr int kLongest = 500;    // steps of an episode

  // Position (m), velocity (m/s), angle (rad), angular velocity (rad/s).
  using State = std::array<double, kState>;

  explicit CartPole(uint64_t seed) : random_(seed) { begin(); }

  // Begins a new episode: all four numbers are uniform in [-0.05, 0.05).
  void begin();
  void begin_at(const State& state);
  // Each step earns 1. Returns true after the last step of the episode: the cart is more than 2.4 m
  // from the middle, the pole is more than 12 degrees from upright, or kLongest is reached.
  bool step(int64_t action);

  const State& state() const { return state_; }
  int steps() const { return steps_; }

 private:
  std::mt19937_64 random_;
  State state_{};
  int steps_ = 0;
};

}  // namespace weft::examples
