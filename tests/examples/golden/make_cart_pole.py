#!/usr/bin/env python3
"""Writes cart_pole.json: episodes of gymnasium's CartPole-v1 that the C++ environment must repeat.

    pip install gymnasium==1.4.0 && tests/examples/golden/make_cart_pole.py

Each episode has its first state, the actions, every state that followed, and how it ended. The last
one is balanced by hand until the time limit ends it.
"""
import json
import pathlib
import random

import gymnasium
import numpy as np


def episode(env, first, choose):
    env.reset()
    env.unwrapped.state = np.array(first, dtype=np.float64)
    state, actions, states, ended = first, [], [], False
    while not ended:
        actions.append(choose(state))
        _, reward, terminated, truncated, _ = env.step(actions[-1])
        assert reward == 1.0
        ended = terminated or truncated
        state = [float(number) for number in env.unwrapped.state]
        states.append(state)
    return {"first": first, "actions": actions, "states": states, "truncated": truncated}


def main():
    rng = random.Random(7)
    env = gymnasium.make("CartPole-v1")
    episodes = []
    for _ in range(12):
        first = [rng.uniform(-0.05, 0.05) for _ in range(4)]
        episodes.append(episode(env, first, lambda _: rng.randrange(2)))
    upright = lambda s: int(s[2] + 0.3 * s[3] + 0.05 * s[0] + 0.1 * s[1] > 0)
    episodes.append(episode(env, [0.02, -0.01, 0.03, 0.04], upright))
    assert episodes[-1]["truncated"]
    out = pathlib.Path(__file__).with_name("cart_pole.json")
    out.write_text(json.dumps({"gymnasium": gymnasium.__version__, "episodes": episodes}) + "\n")


if __name__ == "__main__":
    main()
