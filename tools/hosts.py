"""Network namespaces that stand for the hosts of a cluster, for tools/attack.py and tools/clusters.py.

Each host has a loopback and an interface eth0 of its own. All share the file system, and so the job's secret.
"""
import contextlib
import os
import pathlib
import subprocess
import sys
import threading
import time


class Failed(Exception):
    """Something that the tool needs does not work. The text names it."""


def run(*command, check=True, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def inside(host, *command):
    # Unlike `ip netns exec` it keeps /sys, where slurmd looks for control groups.
    return ["nsenter", f"--net=/run/netns/{host}", *map(str, command)]


def enter_namespaces(variable, script):
    """Starts the script once more, in a network and a mount namespace of its own. Returns in there."""
    if variable in os.environ:
        return
    flags = ["-n", "-m"] if os.geteuid() == 0 else ["-U", "-r", "-n", "-m"]
    os.environ[variable] = "1"
    os.execvp("unshare", ["unshare", *flags, sys.executable, "-W", "ignore::DeprecationWarning", script, *sys.argv[1:]])


def make_network(hosts):
    """`hosts`: address by name."""
    pathlib.Path("/run/netns").mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "netns", "/run/netns")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "br0", "type", "bridge")
    for host, address in hosts.items():
        run("ip", "netns", "add", host)
        run("ip", "link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "link", "set", f"to-{host}", "master", "br0", "up")
        run(*inside(host, "ip", "link", "set", "lo", "up"))
        run(*inside(host, "ip", "address", "add", f"{address}/24", "dev", "eth0"))
        run(*inside(host, "ip", "link", "set", "eth0", "up"))
    run("ip", "link", "set", "br0", "up")


def name_hosts(hosts, folder):
    """Makes the names known on all hosts, for the processes of this mount namespace."""
    path = pathlib.Path(folder) / "hosts"
    names = {**hosts, os.uname().nodename: next(iter(hosts.values()))}  # this machine is the first host
    path.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for host, address in names.items()))
    run("mount", "--bind", path, "/etc/hosts")


class Process:
    """A process on a host. Its output is kept."""

    def __init__(self, host, command, environment, verbose):
        self.lines = []
        self.verbose = verbose
        self.process = subprocess.Popen(inside(host, *command), env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if self.verbose:
                print("   ", line.rstrip(), flush=True)

    def count(self, text):
        """The number of lines so far that have the text."""
        return sum(text in line for line in self.lines)

    def wait_for(self, text, count=1, patience=300):
        deadline = time.monotonic() + patience
        while self.count(text) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"no '{text}':\n  " + "\n  ".join(self.lines[-20:]))
            time.sleep(0.05)

    def wait(self, patience=300):
        """Returns the exit code; None: it still runs."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(5)
        return code

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
