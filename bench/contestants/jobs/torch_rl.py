#!/usr/bin/env python3
"""The contestant "torch python" of `weft_bench rl`: an agent and its observers on torch.distributed.rpc.

It has the structure of the program of PyTorch's tutorial (pytorch/examples, distributed/rpc/rl).
There are two calls per step, and each runs a function with a reference and a method as arguments.
There is a forward pass for each call, log-probabilities keep their graphs, and an update follows
each round of episodes. Three changes make it faster: environments are plain Python without
gymnasium, the policy has no dropout, and an observer begins its next episode without waiting for
the others.

Only `weft_bench rl` starts it.
"""
import math
import random
import statistics
import time

import torch_crowd

import torch
from torch.distributed.rpc import RRef, remote, rpc_async, rpc_sync
from torch.distributions import Categorical

GAMMA = 0.99
WARM_UP_SHARE = 0.2
TRIAL_STEPS = 8
ROWS = ("two calls", "one call", "batched 1", "batched 16")  # each row is compared with two calls


def call_method(method, reference, *arguments):
    return method(reference.local_value(), *arguments)


def remote_method(method, reference, *arguments):
    return rpc_sync(reference.owner(), call_method, args=(method, reference, *arguments))


def run_for(seconds, run):
    """Finds by trials how many steps take about `seconds`, and returns the result of run(steps)."""
    # After SIGSTOP the first run must find the peers again.
    steps, tried = TRIAL_STEPS, run(1)["calls"]
    while True:
        trial = run(steps)
        tried += trial["calls"]
        if trial["seconds"] >= WARM_UP_SHARE * seconds:
            break
        steps *= 2
    result = run(max(2, int(seconds * steps / trial["seconds"])))
    result["all_calls"] += tried
    return result


class CartPole:
    """CartPole-v1; examples/rl_agent_observers/cart_pole.h names the source."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.reset()

    def reset(self):
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return torch.tensor(self.state)

    def step(self, action):
        x, v, angle, turn = self.state
        force = 10.0 if action == 1 else -10.0
        cosine, sine = math.cos(angle), math.sin(angle)
        pull = (force + 0.05 * turn * turn * sine) / 1.1
        turn_gain = (9.8 * sine - cosine * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
        gain = pull - 0.05 * turn_gain * cosine / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * gain, angle + 0.02 * turn, turn + 0.02 * turn_gain]
        self.steps += 1
        ended = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * 2 * math.pi / 360
        return torch.tensor(self.state), 1.0, ended or self.steps >= 500


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = torch.nn.Linear(4, 128)
        self.affine2 = torch.nn.Linear(128, 2)

    def forward(self, x):
        x = torch.relu(self.affine1(x))
        return torch.softmax(self.affine2(x), dim=1)


class Observer:
    def __init__(self, number):
        self.number = number
        self.environment = CartPole(543 + number)
        self.state = self.environment.reset()

    def run(self, agent, steps):
        waits = []
        for _ in range(steps):
            asked = time.perf_counter()
            action = remote_method(Agent.select_action, agent, self.number, self.state)
            waits.append((time.perf_counter() - asked) * 1e6)
            self.state, reward, ended = self.environment.step(action)
            remote_method(Agent.report_reward, agent, self.number, reward)
            if ended:
                self.state = self.environment.reset()
        return waits


class Agent:
    def __init__(self, members):
        self.observers = [remote(f"observer{i}", Observer, args=(i,)) for i in range(members)]
        self.reference = RRef(self)
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.rewards = {i: [] for i in range(members)}
        self.log_probs = {i: [] for i in range(members)}

    def select_action(self, number, state):
        choice = Categorical(self.policy(state.unsqueeze(0)))
        action = choice.sample()
        self.log_probs[number].append(choice.log_prob(action))
        return action.item()

    def report_reward(self, number, reward):
        self.rewards[number].append(reward)

    def finish_episode(self):
        losses = []
        for number, rewards in self.rewards.items():
            after, returns = 0.0, []
            for reward in reversed(rewards):
                after = reward + GAMMA * after
                returns.insert(0, after)
            if len(returns) > 1:
                returns = torch.tensor(returns)
                returns = (returns - returns.mean()) / (returns.std() + 1e-6)
                losses += [-p * r for p, r in zip(self.log_probs[number], returns)]
            self.rewards[number], self.log_probs[number] = [], []
        self.optimizer.zero_grad()
        if losses:
            torch.cat(losses).sum().backward()
            self.optimizer.step()

    def run(self, members, steps):
        begin = time.perf_counter()
        running = [
            rpc_async(
                observer.owner(),
                call_method,
                args=(Observer.run, observer, self.reference, steps),
                timeout=0,
            )
            for observer in self.observers[:members]
        ]
        waits = sum((one.wait() for one in running), [])
        self.finish_episode()
        assert len(waits) == steps * members
        waits.sort()
        return {
            "calls": steps * members,
            "seconds": time.perf_counter() - begin,
            "median_us": statistics.median(waits),
            "p99_us": waits[len(waits) * 99 // 100],
            "all_calls": steps * members,
        }

    def measure(self, row, members, seconds):
        if not any(known in row for known in ROWS):
            return None
        return run_for(seconds, lambda steps: self.run(members, steps))


if __name__ == "__main__":
    torch_crowd.main(lambda rank: f"observer{rank - 1}" if rank else "agent", Agent)
