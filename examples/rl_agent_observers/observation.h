// The observation that an observer sends to the agent, and the checks of it. The agent trusts no
// observer: a mistake of one must not reach the others, with which its call may be batched.
//
// Thread safety: plain values and functions.
// Errors: RpcError (InvalidArgument), whose text names what is wrong.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <torch/torch.h>

namespace weft::examples {

// The rewards of each environment's last action, and its state now. Row i of each tensor is about
// the same environment.
struct Observation {
  at::Tensor places;   // [n] int64
  at::Tensor states;   // [n, 4] float
  at::Tensor rewards;  // [n] float, for the last action; unused in an environment's first step
  at::Tensor ended;    // [n] bool: that action completed an episode, and the state begins another
  friend auto weft_fields(Observation& o) {
    return std::tie(o.places, o.states, o.rewards, o.ended);
  }
};

// Each tensor must have its shape and type, lie on the CPU without gaps, and hold numbers of at
// most a million. With larger numbers, returns and weights would not stay finite.
void check_states(const at::Tensor& places, const at::Tensor& states);
void check_rewards(const at::Tensor& places, const at::Tensor& rewards, const at::Tensor& ended);
// Returns the places in order. No place may be there twice. Their shape was checked before.
std::vector<int64_t> distinct_places(const at::Tensor& places);

}  // namespace weft::examples
