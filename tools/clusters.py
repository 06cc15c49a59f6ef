#!/usr/bin/env -S python3 -W ignore::DeprecationWarning
"""Runs two examples under every launcher of clusters, and prints a table:

  tools/clusters.sh [--only LAUNCHER,...] [--verbose]

The hosts are network namespaces, so it needs root. The launchers are the real ones: weft_launch, torchrun, SLURM
(slurmctld, slurmd and munged of its own), mpirun of OpenMPI and of MPICH. What is not installed is skipped by name.
Pods of Kubernetes are played: processes with the variables that its controllers set. Under each launcher:

- examples/ddp_mnist has three ranks; its losses must be those of weft_launch on one host;
- examples/parameter_server has a server and two trainers, which must learn;
- a host is killed while ddp_mnist trains; everybody must end, and the exit codes are shown;
- where the launcher passes SIGTERM on, ddp_mnist must stop in order, and a resumed run must have the same losses;
- there, parameter_server must stop in order too, and a resumed run must learn;
- a pod of an indexed Job is killed while parameter_server trains, and replaced; the job must finish;
- deploy/slurm/train.sbatch runs ddp_mnist for longer than its time limit: SLURM sends SIGTERM before that, the script
  has the job requeued, and in the end it must have the losses of one run.

Exit code 0: all held.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from hosts import Failed, Process, enter_namespaces, inside, make_network, name_hosts, run

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = {"n1": "10.80.0.1", "n2": "10.80.0.2", "n3": "10.80.0.3"}
RANKS = 3
DDP = ["--double", "--limit", "1500", "--batch", "16", "--epochs"]
PARAMETER_SERVER = ["--limit", "6000", "--epochs", "2"]
LEAST_ACCURACY = 0.6
PATIENCE = 120  # seconds until a process counts as hanging


class Cluster:
    """What all launchers need: the programs, the environment and the folder of this run."""

    def __init__(self, options, folder):
        self.build = ROOT / options.build
        self.verbose = options.verbose
        self.folder = pathlib.Path(folder)
        self.environment = {name: value for name, value in os.environ.items()
                            if not re.match(r"(SLURM|OMPI|PMIX?|MPI|PET|MASTER|WEFT|TORCHELASTIC|JOB)_|"
                                            r"(LOCAL_)?(RANK|WORLD_SIZE)$", name)}
        self.environment |= {"HOME": folder, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0",
                             "TORCH_CPP_LOG_LEVEL": "FATAL"}
        self.port = 29500

    def start(self, host, command, **variables):
        return Process(host, command, self.environment | variables, self.verbose)

    def new_port(self):
        self.port += 1
        return str(self.port)


# ---- the launchers: each starts a program with RANKS ranks, and returns its processes. The first one's output has
# rank 0's, and its exit code is the job's.


class OneHost:
    name, hosts, passes_sigterm, notices_silence = "weft_launch, 1 host", 1, True, False

    def start(self, cluster, program):
        return [cluster.start("n1", [cluster.build / "worker/weft_launch", "-n", RANKS, "--", *program])]


class ThreeHosts:
    name, hosts, passes_sigterm, notices_silence = "weft_launch, 3 hosts", 3, True, True

    options = []

    def start(self, cluster, program):
        port = cluster.new_port()
        return [cluster.start(host, [cluster.build / "worker/weft_launch", "--nnodes", len(HOSTS), "--node-rank", node,
                                     "--master-addr", "n1", "--master-port", port, *self.options, "--", *program])
                for node, host in enumerate(HOSTS)]


class Certificates(ThreeHosts):
    name, options = "weft_launch --certificates, 3 hosts", ["--certificates", "per-worker"]


class Torchrun:
    name, hosts, passes_sigterm, notices_silence = "torchrun, 2 hosts", 2, False, False
    program = ROOT / ".deps/oracles/bin/torchrun"

    def missing(self):
        return None if self.program.exists() else "tools/oracles.sh installs it"

    def start(self, cluster, program):
        port = cluster.new_port()
        return [cluster.start(host, [self.program, "--no-python", "--nnodes", 2, "--node-rank", node,
                                     "--nproc-per-node", 2 - node, "--master-addr", "n1", "--master-port", port,
                                     *program])
                for node, host in enumerate(["n1", "n2"])]


class Mpi:
    hosts, passes_sigterm, notices_silence = 3, False, False

    def __init__(self, name, mpirun):
        self.name, self.mpirun = f"{name}, 3 hosts", mpirun

    def missing(self):
        return None if shutil.which(self.mpirun) else f"no {self.mpirun}"

    def start(self, cluster, program):
        # What ssh does on a cluster: AGENT HOST COMMAND. MPICH gives options of ssh too.
        agent = cluster.folder / "agent"
        # OpenMPI's daemons crash now and then if several share a folder, which no two hosts do.
        agent.write_text("#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n"
                         f"export TMPDIR='{cluster.folder}'/\"$host\"; mkdir -p \"$TMPDIR\"\n"
                         "exec nsenter --net=/run/netns/\"$host\" sh -c \"$*\"\n")
        agent.chmod(0o755)
        hosts = ",".join(HOSTS)
        if self.mpirun.endswith("openmpi"):
            options = ["--allow-run-as-root", "--host", hosts, "--mca", "plm_rsh_agent", agent, "-x",
                       "MASTER_ADDR=n1", *[word for name in ("HOME", "GLOO_SOCKET_IFNAME") for word in ("-x", name)]]
        else:
            options = ["-hosts", hosts, "-ppn", 1, "-launcher", "ssh", "-launcher-exec", agent, "-genv",
                       "MASTER_ADDR", "n1"]
        return [cluster.start("n1", [self.mpirun, "-n", RANKS, *options, *program],
                              **({} if "openmpi" in self.mpirun else {"MASTER_PORT": cluster.new_port()}))]


class TrainJob:
    name, hosts, passes_sigterm, notices_silence = "pods of a TrainJob (played)", 3, True, False

    def variables(self, cluster, rank, port):
        return {"PET_NNODES": str(RANKS), "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1",
                "PET_MASTER_ADDR": "n1", "PET_MASTER_PORT": port, "JOB_COMPLETION_INDEX": str(rank)}

    def start_pod(self, cluster, program, rank, port):
        return cluster.start(list(HOSTS)[rank], program, **self.variables(cluster, rank, port))

    def start(self, cluster, program):
        port = cluster.new_port()
        return [self.start_pod(cluster, program, rank, port) for rank in range(RANKS)]


class IndexedJob(TrainJob):
    name = "pods of an indexed Job (played)"

    def variables(self, cluster, rank, port):
        return {"JOB_COMPLETION_INDEX": str(rank), "WEFT_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "n1",
                "MASTER_PORT": port}


class Slurm:
    """A cluster of two nodes. Its daemons live as long as this script."""

    name, hosts, passes_sigterm, notices_silence = "srun of SLURM, 2 nodes", 2, True, True

    def __init__(self, with_launchers):
        self.with_launchers = with_launchers
        if with_launchers:
            self.name = "srun starts a weft_launch per node"

    def missing(self):
        absent = [name for name in ("slurmctld", "slurmd", "srun", "munged") if not shutil.which(name)]
        return f"no {', '.join(absent)}" if absent else None

    def prepare(self, cluster):
        folder = cluster.folder / "slurm"
        cluster.environment["SLURM_CONF"] = str(folder / "slurm.conf")
        if folder.exists():
            return
        for name in ("munge", "state", "spool.n1", "spool.n2"):
            (folder / name).mkdir(parents=True)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        run("munged", "--force", f"--socket={folder}/munge/socket", f"--key-file={folder}/munge.key",
            f"--log-file={folder}/munge/log", f"--pid-file={folder}/munge/pid", f"--seed-file={folder}/munge/seed")
        name = os.uname().nodename
        (folder / "slurm.conf").write_text("\n".join([
            "ClusterName=weft", f"SlurmctldHost={name}({HOSTS['n1']})", "SlurmUser=root", "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge/socket", f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool.%n", f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd.%n.pid", f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd.%n.log", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "SwitchType=switch/none", "SlurmdParameters=config_overrides", "ReturnToService=2", "SlurmdTimeout=10",
            "SelectType=select/cons_tres",
            *[f"NodeName={node} NodeHostname={name} NodeAddr={HOSTS[node]} Port=2700{node[1]} CPUs=4"
              for node in ("n1", "n2")],
            "PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""]))
        environment = cluster.environment
        run(*inside("n1", "slurmctld"), env=environment)
        self.start_nodes(cluster)

    def start_nodes(self, cluster):
        for node in ("n1", "n2"):
            file = cluster.folder / f"slurm/slurmd.{node}.pid"
            if not file.exists() or not pathlib.Path(f"/proc/{file.read_text().strip()}").exists():
                run(*inside(node, "slurmd", "-N", node), env=cluster.environment)
        deadline = time.monotonic() + 60
        while run(*inside("n1", "sinfo", "-h", "-o", "%T"), env=cluster.environment).split() != ["idle"]:
            if time.monotonic() > deadline:
                raise Failed("the nodes of SLURM are not idle: " +
                             run(*inside("n1", "sinfo"), env=cluster.environment))
            time.sleep(0.2)

    def start(self, cluster, program):
        self.prepare(cluster)
        self.start_nodes(cluster)
        if self.with_launchers:  # two processes on n1, one on n2
            script = cluster.folder / "start"
            script.write_text("#!/bin/sh\nexec \"$WEFT_LAUNCH\" -n $((2 - SLURM_PROCID)) -- \"$@\"\n")
            script.chmod(0o755)
            return [cluster.start("n1", ["srun", "-N2", "-n2", script, *program],
                                  WEFT_LAUNCH=str(cluster.build / "worker/weft_launch"))]
        return [cluster.start("n1", ["srun", "-N2", f"-n{RANKS}", "--kill-on-bad-exit=1", *program])]

    def terminate(self, cluster, processes):
        job = run(*inside("n1", "squeue", "-h", "-o", "%A"), env=cluster.environment).split()[0]
        run(*inside("n1", "scancel", "--signal=TERM", f"{job}.0"), env=cluster.environment)


LAUNCHERS = [OneHost(), ThreeHosts(), Certificates(), Torchrun(), Slurm(False), Slurm(True),
             Mpi("OpenMPI", "mpirun.openmpi"), Mpi("MPICH", "mpirun.mpich"), TrainJob(), IndexedJob()]


# ---- what is done under each of them


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, launcher, what, held, detail):
        self.failed += not held
        print(f"{launcher.name:36} {what:18} {'held' if held else 'FAILED':7} {detail}", flush=True)


def ddp(cluster, epochs, *options):
    return [cluster.build / "examples/ddp_mnist/ddp_mnist", *DDP, epochs, *options]


def losses(path):
    return [float(line.split()[1]) for line in pathlib.Path(path).read_text().splitlines()]


def difference(path, reference):
    """The greatest difference of two files of losses; infinite, if they have different steps."""
    ours, theirs = losses(path), losses(reference)
    return max(abs(a - b) for a, b in zip(ours, theirs)) if len(ours) == len(theirs) else float("inf")


def codes(processes):
    return [process.wait(PATIENCE) for process in processes]


def last_lines(processes):
    return " | ".join(process.lines[-1] if process.lines else "-" for process in processes)


@contextlib.contextmanager
def started(launcher, cluster, program):
    processes = launcher.start(cluster, program)
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def run_ddp(launcher, cluster, reference, report):
    path = cluster.folder / "losses"
    path.unlink(missing_ok=True)
    with started(launcher, cluster, ddp(cluster, 2, "--losses", path)) as processes:
        ended = codes(processes)
        if ended != [0] * len(ended) or not path.exists():
            return report.line(launcher, "ddp_mnist", False, f"{ended}: {last_lines(processes)}")
    if not reference.exists():
        shutil.copy(path, reference)
    greatest = difference(path, reference)
    report.line(launcher, "ddp_mnist", greatest < 1e-9, f"{len(losses(path))} losses, {greatest:.1e} apart")


def run_parameter_server(launcher, cluster, report):
    program = [cluster.build / "examples/parameter_server/parameter_server", *PARAMETER_SERVER]
    with started(launcher, cluster, program) as processes:
        ended = codes(processes)
        text = "\n".join(line for process in processes for line in process.lines)
    found = re.search(r"test accuracy (0\.\d+) after [^,]*, \d+ workers", text)
    held = ended == [0] * len(ended) and found is not None and float(found.group(1)) >= LEAST_ACCURACY
    report.line(launcher, "parameter_server", held, found.group(0) if found else f"{ended}: {text[-300:]}")


def kill_host(launcher, cluster, report):
    if launcher.hosts == 1:
        return
    victim = list(HOSTS)[launcher.hosts - 1]
    with started(launcher, cluster, ddp(cluster, 5000)) as processes:
        processes[0].wait_for("epoch 1 of")
        begun = time.monotonic()
        if launcher.notices_silence:  # a host that loses its power closes no connection
            run("ip", "link", "set", f"to-{victim}", "down")
        for pid in run("ip", "netns", "pids", victim).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ended = codes(processes)
        passed = time.monotonic() - begun
        report.line(launcher, "a host is killed", ended[0] != 0 and None not in ended,
                    f"exit codes {ended} after {passed:.1f} s")
    run("ip", "link", "set", f"to-{victim}", "up")


def replace_pod(launcher, cluster, report):
    if not isinstance(launcher, IndexedJob):
        return
    program = [cluster.build / "examples/parameter_server/parameter_server", *PARAMETER_SERVER[:2], "--epochs", "20",
               "--checkpoint-every", "100", "--out", cluster.folder / "replaced"]
    with started(launcher, cluster, program) as processes:
        processes[1].wait_for("epoch 2 of")
        processes[2].kill()
        processes[2] = launcher.start_pod(cluster, program, 2, str(cluster.port))
        ended = codes(processes)
        found = re.search(r"test accuracy .* workers", "\n".join(processes[1].lines))
    report.line(launcher, "a pod is replaced", ended == [0] * RANKS and found is not None,
                f"exit codes {ended}, {found.group(0) if found else last_lines(processes)}")


def terminate(launcher, cluster, processes):
    if hasattr(launcher, "terminate"):
        launcher.terminate(cluster, processes)
    else:
        for process in processes:
            process.process.terminate()


def stop_parameter_server(launcher, cluster, report):
    if not launcher.passes_sigterm:
        return
    saved = cluster.folder / "saved_parameters"
    shutil.rmtree(saved, ignore_errors=True)
    program = [cluster.build / "examples/parameter_server/parameter_server", "--limit", "6000", "--checkpoint", saved,
               "--epochs"]
    with started(launcher, cluster, [*program, "500"]) as processes:
        trainer = processes[min(1, len(processes) - 1)]  # the first one writes
        trainer.wait_for("epoch 1 of")
        terminate(launcher, cluster, processes)
        ended = codes(processes)
        text = "\n".join(line for process in processes for line in process.lines)
    found = re.search(r"stopped after step (\d+)", text)
    if not found:
        return report.line(launcher, "SIGTERM (server)", False, f"{ended}: {text[-300:]}")
    epochs = int(found.group(1)) // (6000 // (64 * (RANKS - 1))) + 3  # as many as begun, and two more
    with started(launcher, cluster, [*program, str(epochs), "--resume"]) as processes:
        resumed = codes(processes)
        text = "\n".join(line for process in processes for line in process.lines)
    learnt = re.search(r"test accuracy (0\.\d+) after \d+ epochs", text)
    held = (ended == [143] * len(ended) and resumed == [0] * len(resumed) and learnt is not None and
            float(learnt.group(1)) >= LEAST_ACCURACY)
    report.line(launcher, "SIGTERM (server)", held,
                f"exit codes {ended}, {found.group(0)}, then {learnt.group(0) if learnt else text[-300:]}")


def requeue(launcher, cluster, report):
    """Two ranks train for about a minute, and SLURM ends a job before that."""
    if not isinstance(launcher, Slurm) or launcher.with_launchers:
        return
    launcher.prepare(cluster)
    launcher.start_nodes(cluster)
    folder = cluster.folder / "requeue"
    folder.mkdir()
    one_epoch = ["--limit", "6000", "--batch", "8", "--double", "--epochs"]
    program = cluster.build / "examples/ddp_mnist/ddp_mnist"
    launch = [cluster.build / "worker/weft_launch", "-n", 2, "--", program, *one_epoch]
    begun = time.monotonic()
    trial = cluster.start("n1", [*launch, 2])
    if trial.wait(PATIENCE) != 0:
        return report.line(launcher, "requeue", False, trial.lines[-1])
    epochs = max(4, round(50 / (time.monotonic() - begun) * 2))
    (folder / "train").write_text(
        f"#!/bin/sh\nexec {program} {' '.join(one_epoch)} {epochs} --losses {folder}/parts \"$@\"\n")
    (folder / "train").chmod(0o755)
    job = run(*inside("n1", "sbatch", "--parsable", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=1",
                      "--signal=TERM@20", f"--chdir={folder}", ROOT / "deploy/slurm/train.sbatch"),
              env=cluster.environment).strip()
    whole = cluster.start("n3", [*launch, epochs, "--losses", folder / "whole"])
    states, hurried, deadline = [], 0, time.monotonic() + 10 * 60
    while time.monotonic() < deadline:
        shown = run(*inside("n1", "scontrol", "show", "job", job), env=cluster.environment)
        state = re.search(r"JobState=(\w+)", shown).group(1)
        restarts = int(re.search(r"Restarts=(\d+)", shown).group(1))
        states += [] if states[-1:] == [state] else [state]
        if state in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"):
            break
        if state == "PENDING" and restarts > hurried:  # SLURM would wait for two minutes
            hurried = restarts
            time.sleep(5)  # until the nodes have forgotten the run before
            run(*inside("n1", "scontrol", "update", f"JobId={job}", "StartTime=now"), env=cluster.environment)
        time.sleep(0.5)
    ended = whole.wait(5 * 60)
    held = states[-1] == "COMPLETED" and restarts > 0 and ended == 0
    greatest = difference(folder / "parts", folder / "whole") if held else float("inf")
    detail = f"{greatest:.1e} apart" if held else (folder / f"slurm-{job}.out").read_text()[-300:]
    report.line(launcher, "requeue", held and greatest < 1e-9, f"{' '.join(states)}, {restarts} restarts, {detail}")


def stop_and_resume(launcher, cluster, report):
    if not launcher.passes_sigterm:
        return
    path, saved, whole = (cluster.folder / name for name in ("parts", "saved", "whole"))
    for old in (path, whole):
        old.unlink(missing_ok=True)
    shutil.rmtree(saved, ignore_errors=True)
    options = ["--losses", path, "--checkpoint", saved]
    with started(launcher, cluster, ddp(cluster, 5000, *options)) as processes:
        processes[0].wait_for("epoch 2 of")
        terminate(launcher, cluster, processes)
        ended = codes(processes)
        text = "\n".join(processes[0].lines)
    found = re.search(r"stopped after step (\d+)", text)
    if not found:
        return report.line(launcher, "SIGTERM", False, f"{ended}: {text[-300:]}")
    epochs = len(losses(path)) // (len(losses(cluster.folder / "reference")) // 2) + 1
    resumed = []
    for program in (ddp(cluster, epochs, *options, "--resume"), ddp(cluster, epochs, "--losses", whole)):
        with started(launcher, cluster, program) as processes:
            resumed += codes(processes)
    greatest = difference(path, whole)
    held = greatest < 1e-9 and ended == [143] * len(ended) and resumed == [0] * len(resumed)
    report.line(launcher, "SIGTERM, resume", held,
                f"exit codes {ended}, {found.group(0)}, then {greatest:.1e} apart")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--only", default="", help="launchers whose names begin so, separated by commas")
    parser.add_argument("--verbose", action="store_true", help="show the output of the jobs")
    options = parser.parse_args()
    enter_namespaces("WEFT_CLUSTERS_INSIDE", __file__)
    report, folder = Report(), tempfile.mkdtemp(prefix="weft_clusters_")
    cluster = Cluster(options, folder)
    reference = cluster.folder / "reference"
    try:
        make_network(HOSTS)
        name_hosts(HOSTS, folder)
        for launcher in LAUNCHERS:
            if launcher.hosts > 1 and not launcher.name.startswith(tuple(options.only.split(","))):
                continue
            missing = launcher.missing() if hasattr(launcher, "missing") else None
            if missing:
                print(f"{launcher.name:36} skipped: {missing}", flush=True)
                continue
            run_ddp(launcher, cluster, reference, report)
            run_parameter_server(launcher, cluster, report)
            kill_host(launcher, cluster, report)
            replace_pod(launcher, cluster, report)
            stop_and_resume(launcher, cluster, report)
            stop_parameter_server(launcher, cluster, report)
            requeue(launcher, cluster, report)
    except Failed as error:
        print(f"clusters.sh: {error}", file=sys.stderr)
        return 2
    finally:
        for host in HOSTS:
            for pid in run("ip", "netns", "pids", host, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["pkill", "-f", f"munged.*{folder}"], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
