"""What the contestants in Python of `weft_bench` that are a crowd share (contestants/crowd.h): the
driver's commands, as JSON lines from socket 3 (contestants/child.h), and joining torch.distributed.rpc.
"""
import argparse
import ctypes
import json
import os
import resource
import signal
import socket

os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"

import torch
import torch.distributed.rpc as rpc

DRIVER_SOCKET = 3
UNIMPLEMENTED = 12  # as in absl::StatusCode


def usage():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "page_faults": used.ru_minflt + used.ru_majflt,
        "switches": used.ru_nvcsw + used.ru_nivcsw,
    }


class Process:
    """Answers the driver's commands; `make_leader(members)` is what the leader then runs.

    A leader has measure(row, amount, seconds), which returns a block's result, or None for a row that
    it does not know.
    """

    def __init__(self, role, name_of, make_leader, timeout):
        self.leads = role == "leader"
        self.name_of, self.make_leader, self.timeout = name_of, make_leader, timeout
        self.leader = None

    def listen(self, command):
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            return {"address": str(door.getsockname()[1])}

    def join(self, command):
        members = command["members"]
        rank = 0 if self.leads else command["member"] + 1
        rpc.init_rpc(
            self.name_of(rank),
            rank=rank,
            world_size=members + 1,
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                num_worker_threads=max(16, members + 4),
                rpc_timeout=self.timeout,
                init_method=f"tcp://127.0.0.1:{command['address']}",
            ),
        )
        if self.leads:
            self.leader = self.make_leader(members)
        return {}

    def run(self, command):
        result = self.leader.measure(command["row"], command["amount"], command["seconds"])
        if result is None:
            return {"code": UNIMPLEMENTED, "error": "no such row"}
        return {"result": {"bytes": 0, "usage": usage(), **result}}

    def usage(self, command):
        return {"usage": usage()}


def main(name_of, make_leader, timeout=60):
    PR_SET_PDEATHSIG = 1  # a stopped process would not see the driver's end otherwise
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["leader", "member"], required=True)
    process = Process(parser.parse_args().role, name_of, make_leader, timeout)
    torch.set_num_threads(1)
    with socket.socket(fileno=DRIVER_SOCKET) as connection:
        driver = connection.makefile("rw")
        for line in driver:
            command = json.loads(line)
            answer = {"code": 0}
            if command["do"] != "quit":
                answer.update(getattr(process, command["do"])(command))
            driver.write(json.dumps(answer) + "\n")
            driver.flush()
            if command["do"] == "quit":
                break
    os._exit(0)  # as the others: libraries' threads end in no useful order
