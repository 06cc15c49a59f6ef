// Remembers what happened in each environment since its episode began, and the finished episodes.
//
// Each environment of each observer has a number, its *place*, which is unique in the whole group.
//
// Thread safety: none; the agent's lock guards these objects.
// Errors: RpcError. PermissionDenied (another observer's place), ResourceExhausted (too many
// places).
// Bounds: 65,536 places; episodes of ten times the longest one that the environment allows.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "weft/base/ids.h"

namespace weft::examples {

// One environment since its episode began. The reward of the last action may be missing.
struct Trajectory {
  WorkerId observer;
  std::ranlux24_base random;  // its own random numbers, so that no other environment matters
  std::vector<float> states;  // 4 for each action
  std::vector<int64_t> actions;
  std::vector<float> rewards;

  // Returns a random number in [0, 1).
  float draw();
  // Adds an action in this state (4 numbers). If the reward of the last action never came, that
  // action is forgotten.
  void add_action(const float* state, int64_t action);
  // False: no action waits for a reward, as in the first observation of an environment.
  bool add_reward(float reward);
  bool too_long() const;
};

// Finished episodes, one after the other.
struct Episodes {
  std::vector<float> states;
  std::vector<int64_t> actions;
  std::vector<float> returns;  // discounted sums of the later rewards

  // Moves the steps of a finished episode here, unless `room` is false. Then it drops them.
  void take(Trajectory& finished, const std::vector<float>& discounted, bool room);
};

class Trajectories {
 public:
  explicit Trajectories(uint64_t seed) : seed_(seed) {}

  // Assigns those places to the observer that no observer has yet.
  void admit(WorkerId observer, const std::vector<int64_t>& places);
  // Null: the place is not known; its observer was forgotten.
  Trajectory* find(int64_t place);
  // Forgets the observer's places and unfinished episodes.
  void forget(WorkerId observer);

 private:
  const uint64_t seed_;
  std::map<int64_t, Trajectory> by_place_;
};

}  // namespace weft::examples
