#!/usr/bin/env python3
"""A process of weft_bench's contestant "torch batched": PyTorch's own batched program.

It is the program of PyTorch's tutorial on batch RPC processing, on torch.distributed.rpc. The agent
answers `select_action` by async execution, when all observers have asked, with one forward for all.
An observer makes one call per step and reports its rewards with the result of the whole run.
Environments and policy are those of torch_rl.py. "batched 16" has 16 environments in each observer.
"""
import statistics
import threading
import time

import torch_crowd

import torch
import torch.distributed.rpc as rpc
from torch.distributed.rpc import RRef, remote, rpc_async, rpc_sync
from torch.distributions import Categorical

from torch_rl import GAMMA, CartPole, Policy, run_for

ENVIRONMENTS = {"batched 1": 1, "batched 16": 16}  # of one observer, by the beginning of a row's name


def environments_of(row):
    for kind, count in ENVIRONMENTS.items():
        if row.startswith(kind + ",") or row.endswith(", " + kind):
            return count
    return None


def run_observer(reference, agent, steps):
    return reference.local_value().run(agent, steps)


class Observer:
    def __init__(self, number, environments):
        self.number = number
        self.environments = [CartPole(543 + number * environments + i) for i in range(environments)]
        self.states = torch.stack([one.reset() for one in self.environments])

    def run(self, agent, steps):
        waits, rewards = [], torch.zeros(steps, len(self.environments))
        for step in range(steps):
            asked = time.perf_counter()
            actions = rpc_sync(
                agent.owner(), Agent.select_action, args=(agent, self.number, self.states)
            ).tolist()
            waits.append((time.perf_counter() - asked) * 1e6)
            states = []
            for i, environment in enumerate(self.environments):
                state, reward, ended = environment.step(actions[i])
                rewards[step, i] = reward
                states.append(environment.reset() if ended else state)
            self.states = torch.stack(states)
        return waits, rewards


class Agent:
    def __init__(self, members):
        self.members = members
        self.lock = threading.Lock()
        self.reference = RRef(self)
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.observers, self.environments = [], 0

    def use(self, environments):
        if environments == self.environments:
            return
        self.environments = environments
        self.observers = [
            remote(f"observer{i}", Observer, args=(i, environments)) for i in range(self.members)
        ]

    def begin(self, asking):
        self.asking = self.missing = asking
        self.states = torch.zeros(asking, self.environments, 4)
        self.actions = torch.futures.Future()
        self.log_probs = []

    @staticmethod
    @rpc.functions.async_execution
    def select_action(reference, number, states):
        self = reference.local_value()
        mine = self.actions.then(lambda actions: actions.wait()[number])
        with self.lock:
            self.states[number].copy_(states)
            self.missing -= 1
            if self.missing == 0:
                self.missing = self.asking
                # A copy: the backward pass needs the states of each step.
                choice = Categorical(self.policy(self.states.flatten(0, 1).clone()))
                actions = choice.sample()
                self.log_probs.append(choice.log_prob(actions))
                answered, self.actions = self.actions, torch.futures.Future()
                answered.set_result(actions.view(self.asking, self.environments))
        return mine

    def finish_episode(self, rewards):
        after, returns = torch.zeros(rewards.shape[1]), []
        for reward in rewards.flip(0):
            after = reward + GAMMA * after
            returns.append(after)
        returns = torch.stack(returns).flip(0)
        returns = (returns - returns.mean(0)) / (returns.std(0) + 1e-6)
        loss = -(torch.stack(self.log_probs) * returns).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def run(self, members, steps):
        self.begin(members)
        begin = time.perf_counter()
        running = [
            rpc_async(
                observer.owner(), run_observer, args=(observer, self.reference, steps), timeout=0
            )
            for observer in self.observers[:members]
        ]
        results = [one.wait() for one in running]
        if steps > 1:
            self.finish_episode(torch.cat([rewards for _, rewards in results], dim=1))
        waits = sorted(sum((waits for waits, _ in results), []))
        assert len(waits) == steps * members
        calls = steps * members * self.environments
        return {
            "calls": calls,
            "seconds": time.perf_counter() - begin,
            "median_us": statistics.median(waits),
            "p99_us": waits[len(waits) * 99 // 100],
            "all_calls": calls,
            "mean_batch": members,
        }

    def measure(self, row, members, seconds):
        environments = environments_of(row)
        if environments is None:
            return None
        self.use(environments)
        return run_for(seconds, lambda steps: self.run(members, steps))


if __name__ == "__main__":
    torch_crowd.main(lambda rank: f"observer{rank - 1}" if rank else "agent", Agent)
