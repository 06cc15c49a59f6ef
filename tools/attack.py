#!/usr/bin/env -S python3 -W ignore::DeprecationWarning
"""Attacks a running job from another host, and prints a table of what happened:

  tools/attack.sh [--build build/release] [--connections 30000] [--verbose]

The hosts are network namespaces, so it needs root, or a user who may create user namespaces. The job
is examples/rnn_model_parallel, a trainer and a parameter server on two hosts. It checks:

- which ports a job on one host and a job on two hosts open;
- what a listener on the wire can read (with WEFT_SECURITY=none as a control: there it must find names);
- processes without a certificate of the job, and processes that speak something else;
- a flood of connections, while the job trains.

It attacks a worker, and the job's store, which rank 0 serves. Then it attacks a second group, whose workers
have certificates of one site (tests/attacks/member_attacks.cc): by a member, by processes whose
certificates have one fault each, and by a flood of connections while another member joins again and again.
Exit code 0: all held.
"""
import argparse
import contextlib
import ctypes
import os
import pathlib
import re
import resource
import shutil
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time

from hosts import Failed, Process, enter_namespaces, inside, make_network, run

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = {"trainer": "10.79.0.1", "ps": "10.79.0.2", "outside": "10.79.0.9"}
STORE_PORT = 29400
SITE_STORE_PORT = 29401
# Names that plain frames carry: functions, classes and workers.
NAMES = re.compile(rb"LstmState|RnnModel|Decoder|Embedding|aten::|weft|trainer|spiffe")
DESCRIPTORS = 1024
# A connection without an accepted Hello is shut down after 20 s (docs/security.md). A busy machine is later.
HANDSHAKE_SECONDS = 30
RATE = 1000  # connections per second of a flood
JOIN_SECONDS = 2
CLONE_NEWNET = 0x40000000


# ---- the job


STEP = " epoch "  # in each progress line


@contextlib.contextmanager
def job_on_two_hosts(options, home, security):
    processes = []
    try:
        for rank, host in enumerate(["trainer", "ps"]):
            environment = {**os.environ, "HOME": home, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                           "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": HOSTS["trainer"], "MASTER_PORT": str(STORE_PORT),
                           "OMP_NUM_THREADS": "1", "WEFT_SECURITY": security}
            processes.append(Process(host, trainer_command(options), environment, options.verbose))
        processes[0].wait_for(STEP)
        yield processes
    finally:
        for process in processes:
            process.kill()


def trainer_command(options):
    return [ROOT / options.build / "examples/rnn_model_parallel/rnn_model_parallel", "--verses", "3000", "--epochs",
            "100", "--log-interval", "20", "--embedding", "64", "--hidden", "64"]


def listening(host, kind="t"):
    """Local addresses of the sockets that processes on the host listen on, with the processes."""
    found = []
    for line in run(*inside(host, "ss", f"-ln{kind}pH")).splitlines():
        parts = line.split()
        where = next(part for part in parts if ":" in part or part.startswith("@"))
        found.append((where, line[line.find("users:"):]))
    return found


def memory_of(process):
    """Resident memory in MiB of the program that `ip netns exec` has become."""
    status = pathlib.Path(f"/proc/{process.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


# ---- the wire


def words_on_the_wire(options, home, security, seconds):
    """Names in the payloads of TCP packets on the bridge, and the bytes seen."""
    found, size, done = set(), 0, threading.Event()

    def listen():
        nonlocal size
        while not done.is_set():
            with contextlib.suppress(socket.timeout):
                packet = capture.recv(65536)
                if len(packet) < 54 or packet[12:14] != b"\x08\x00" or packet[23] != 6:
                    continue
                tcp = 14 + (packet[14] & 15) * 4
                payload = packet[tcp + (packet[tcp + 12] >> 4) * 4:]
                size += len(payload)
                found.update(NAMES.findall(payload))

    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as capture:
        capture.bind(("to-ps", 0))
        capture.settimeout(1)
        listener = threading.Thread(target=listen)
        listener.start()
        try:
            with job_on_two_hosts(options, home, security):
                time.sleep(seconds)
        finally:
            done.set()
            listener.join()
    return found, size


# ---- attackers, on the host "outside"


def on_host(host, work):
    """Runs `work` in a child on the host and returns the text that it returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            enter(host)
            os.write(write, str(work()).encode())
        except BaseException as error:  # the parent prints it
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def enter(host):
    namespace = os.open(f"/run/netns/{host}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:  # os.setns needs Python 3.12
        raise OSError(ctypes.get_errno(), "setns")


def certificate_of_another_authority(folder):
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
        f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-subj", "/CN=weft", "-addext",
        "subjectAltName=URI:spiffe://weft.local/weft/0000000000000000/default/ps")
    return f"{folder}/cert.pem", f"{folder}/key.pem"


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def frame(kind, flags, payload):
    """An HTTP/2 frame of stream 1."""
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", 1) + payload


def integer(value, prefix):
    """An integer as HPACK writes it after so many bits of a byte that are 0."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([value])
    rest, text = value - most, bytes([most])
    while rest >= 128:
        text, rest = text + bytes([rest % 128 + 128]), rest // 128
    return text + bytes([rest])


def header(name, value):
    return b"\x00" + integer(len(name), 7) + name + integer(len(value), 7) + value


REQUEST = header(b":method", b"POST") + header(b":path", b"/weft.Worker/Stream") + header(b":authority", b"x")
# What the advisories of gRPC 1.51 describe (docs/security.md), as an HTTP/2 client sends it.
ADVISORIES = {
    # A wrong `te`, then headers of more than 8 KiB.
    "CVE-2023-1428": frame(1, 0, REQUEST + header(b":scheme", b"http") + header(b"te", b"x")) + frame(
        9, 4, header(b"a", b"b" * 9000)),
    # A string of 1 GiB that is announced, an integer with endless zeros, and many CONTINUATION frames.
    "CVE-2023-33953": frame(1, 0, REQUEST + b"\x00" + integer(1 << 30, 7)) + frame(
        9, 0, b"\x00\x7f" + b"\x80" * 10000) + frame(9, 0, b"a" * 16000) * 20,
    # Streams that are opened and reset at once.
    "CVE-2023-44487": (frame(1, 5, REQUEST) + frame(3, 0, struct.pack("!I", 8))) * 500,
}


def speak_tls(address, version=None, certificate=None, text=b""):
    """What the worker answers to an HTTP/2 preface and this text: it must be nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.set_ciphers("ALL:@SECLEVEL=0")
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if certificate is not None:
        context.load_cert_chain(*certificate)
    try:
        with socket.create_connection(address, timeout=10) as plain, context.wrap_socket(plain) as wrapped:
            wrapped.sendall(PREFACE + text)
            answer = wrapped.recv(1024)
            return "closed" if not answer else f"ANSWERED {answer[:40]!r}"
    except ssl.SSLError as error:
        return f"refused: {error.reason or error}"
    except (ConnectionResetError, BrokenPipeError) as error:
        return f"refused: {error}"


def speak_plain(address, text):
    with socket.create_connection(address, timeout=15) as plain:
        try:
            plain.sendall(text)
            answer = plain.recv(1024)
        except (ConnectionResetError, BrokenPipeError) as error:
            return f"refused: {error}"
        # A TLS alert says what is wrong. Anything else would be an answer.
        return "closed" if not answer or answer[0] == 21 else f"ANSWERED {answer[:40]!r}"


def drip(address):
    """Sends a TLS handshake one byte every 0.5 s. Returns when the far end closes the connection, or after 120 s."""
    begun = time.monotonic()
    with socket.create_connection(address, timeout=0.5) as plain:
        for number in range(240):
            try:
                plain.sendall(b"\x16\x03\x01\x02\x00"[number:number + 1] or b"\x01")
                if plain.recv(1024):
                    continue
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                pass
            return f"closed after {time.monotonic() - begun:.0f} s"
    return "still open"


def flood(address, connections, rate):
    """Opens connections that say nothing, with at most DESCRIPTORS open at a time."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    held, made, refused, begun = [], 0, 0, time.monotonic()
    for number in range(connections):
        if len(held) > DESCRIPTORS - 64:
            held.pop(0).close()
        one = socket.socket()
        one.setblocking(False)
        error = one.connect_ex(address)
        made, refused = made + (error in (0, 115)), refused + (error not in (0, 115))
        held.append(one)
        ahead = begun + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    return f"{made} connections in {time.monotonic() - begun:.0f} s, {refused} not possible"


# ---- the report


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, what, held, detail):
        self.failed += not held
        print(f"{what:44} {'held' if held else 'FAILED':7} {detail}", flush=True)


def ports_of_one_host(options, home, report):
    environment = {**os.environ, "HOME": home}
    environment.pop("WEFT_SECURITY", None)
    launcher = Process("trainer", [ROOT / options.build / "worker/weft_launch", "-n", "2", "--",
                                   *trainer_command(options)], environment, options.verbose)
    try:
        launcher.wait_for(STEP)
        sockets = listening("trainer")
        unix = [where for where, users in listening("trainer", "x") if "rnn_model" in users or "launch" in users]
        report.line("one host: TCP ports", not sockets, f"{sockets or 'none'}, and {len(unix)} unix sockets")
    finally:
        launcher.process.terminate()
        launcher.process.wait()


def ports_of_two_hosts(report):
    """Returns the address of the parameter server."""
    result = None
    for host, most in (("trainer", 2), ("ps", 1)):
        sockets = [where for where, _ in listening(host)]
        others = [where for where in sockets if not where.endswith(f":{STORE_PORT}")]
        # The kernel shows an IPv4 address on an IPv6 socket as [::ffff:ADDRESS].
        others = [re.sub(r"\[::ffff:(.*)\]", r"\1", where) for where in others]
        stores = [where for where in sockets if where.endswith(f":{STORE_PORT}")]
        report.line(f"two hosts: TCP ports of the {host}", len(others) == 1 and len(sockets) <= most
                    and others[0].startswith(HOSTS[host] + ":")
                    and all(where.startswith(HOSTS[host] + ":") for where in stores), ", ".join(sockets))
        result = (HOSTS[host], int(others[0].rsplit(":", 1)[1]))
    return result


def unknown_processes(target, address, folder, report):
    other = certificate_of_another_authority(folder)
    attacks = {
        "no certificate, TLS 1.3": lambda: speak_tls(address, ssl.TLSVersion.TLSv1_3),
        "no certificate, TLS 1.2": lambda: speak_tls(address, ssl.TLSVersion.TLSv1_2),
        "certificate of another authority": lambda: speak_tls(address, certificate=other),
        "TLS 1.1": lambda: speak_tls(address, ssl.TLSVersion.TLSv1_1, other),
        "HTTP/2 without TLS": lambda: speak_plain(address, PREFACE),
        "random bytes": lambda: speak_plain(address, os.urandom(4096)),
        "an endless TLS record": lambda: speak_plain(address, b"\x16\x03\x01\xff\xff" + os.urandom(70000)),
    }
    for what, attack in attacks.items():
        answer = on_host("outside", attack)
        report.line(f"{target}: {what}", answer.startswith(("refused", "closed")), answer)
    answer = on_host("outside", lambda: drip(address))
    report.line(f"{target}: a handshake of two bytes a second",
                answer.startswith("closed after") and int(answer.split()[2]) <= HANDSHAKE_SECONDS, answer)
    for what, shape in ADVISORIES.items():
        answers = on_host("outside", lambda: ", ".join(sorted(repeat(address, shape, 500))))
        report.line(f"{target}: {what}, 500 times each way", "ANSWERED" not in answers and "Error" not in answers, answers)


def repeat(address, shape, times):
    """The different answers to the shape, in clear and inside TLS without a certificate."""
    answers = {speak_plain(address, PREFACE + shape) for _ in range(times)}
    return answers | {speak_tls(address, text=shape) for _ in range(times)}


def attack_two_hosts(options, home, folder, report):
    with job_on_two_hosts(options, home, "auto") as (trainer, server):
        address = ports_of_two_hosts(report)
        store = (HOSTS["trainer"], STORE_PORT)
        unknown_processes("worker", address, folder, report)
        unknown_processes("store", store, folder, report)

        def steps_per_second(during):
            first, begun = trainer.count(STEP), time.monotonic()
            text = during()
            trainer.wait_for(STEP, max(trainer.count(STEP) + 1, first + 2))
            return (trainer.count(STEP) - first) * 20 / (time.monotonic() - begun), text

        calm, _ = steps_per_second(lambda: time.sleep(options.connections / RATE))
        for what, target, process in (("worker", address, server), ("store", store, trainer)):
            before = memory_of(process)
            busy, text = steps_per_second(lambda: on_host("outside", lambda: flood(target, options.connections, RATE)))
            grown = memory_of(process) - before
            report.line(f"flood of the {what}: silent connections", process.process.poll() is None, text)
            report.line(f"flood of the {what}: its memory", grown <= 32, f"{grown:+.0f} MiB")
            print(f"{f'flood of the {what}: steps of the job':44} {'':7} {busy:.1f} per second, {calm:.1f} without")
        report.line("the job goes on", trainer.process.poll() is None, trainer.lines[-1])


def attack_from_inside(options, folder, report):
    """A group whose members have certificates of a site. One of them attacks it."""
    program = ROOT / options.build / "tests/attacks/member_attacks"
    run(program, "prepare", folder)

    def member(host, name, rank, *arguments):
        environment = {**os.environ, "HOME": folder, "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": "0",
                       "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": HOSTS["ps"], "MASTER_PORT": str(SITE_STORE_PORT),
                       "TORCHELASTIC_RUN_ID": "attacks", "WEFT_TLS_CERT": f"{folder}/{name}.pem",
                       "WEFT_TLS_KEY": f"{folder}/{name}.key", "WEFT_TLS_CA": f"{folder}/ca.pem"}
        return Process(host, [program, name, *arguments], environment, options.verbose)

    processes = [member("ps", "target", 0), member("trainer", "friend", 1)]
    try:
        for process in processes:
            process.wait_for("is ready")
        ports = [where for where, _ in listening("ps") if not where.endswith(f":{SITE_STORE_PORT}")]
        address = (HOSTS["ps"], int(ports[0].rsplit(":", 1)[1]))
        took, over = [], threading.Event()

        def join_again_and_again():
            while not over.is_set():
                process = member("trainer", "late", 3)
                code = process.wait(60)
                lines = [line for line in process.lines if line.startswith("joined in")]
                took.append(float(lines[0].split()[2]) if code == 0 and lines else float("inf"))

        joining = threading.Thread(target=join_again_and_again)
        joining.start()
        text = on_host("outside", lambda: flood(address, options.connections // 3, RATE))
        over.set()
        joining.join()
        report.line("flood: members join meanwhile", bool(took) and max(took) <= JOIN_SECONDS,
                    f"{len(took)} times, {max(took, default=0):.2f} s at most; {text}")

        processes.append(member("outside", "guest", 2, folder))
        codes = [process.wait(120) for process in reversed(processes)]
        for line in processes[-1].lines:
            if line.count("\t") == 2:
                what, held, detail = line.split("\t")
                report.line(f"member: {what}", held == "held", detail)
        report.line("the attacked group ends in order", codes == [0, 0, 0], f"exit codes {codes}")
    finally:
        for process in processes:
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--connections", type=int, default=30_000)
    parser.add_argument("--verbose", action="store_true", help="show the output of the job")
    options = parser.parse_args()
    enter_namespaces("WEFT_ATTACK_INSIDE", __file__)
    report, folder = Report(), tempfile.mkdtemp(prefix="weft_attack_")
    try:
        make_network(HOSTS)
        ports_of_one_host(options, folder, report)
        clear, size = words_on_the_wire(options, folder, "none", 5)
        report.line("control: names in plain traffic", bool(clear),
                    f"{sorted(name.decode() for name in clear)} in {size >> 20} MiB")
        secret, size = words_on_the_wire(options, folder, "auto", 10)
        report.line("names in encrypted traffic", not secret and size > 1 << 20,
                    f"{sorted(name.decode() for name in secret) or 'none'} in {size >> 20} MiB")
        attack_two_hosts(options, folder, folder, report)
        attack_from_inside(options, folder, report)
    except Failed as error:
        print(f"attack.sh: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
