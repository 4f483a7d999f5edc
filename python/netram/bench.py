"""The cost of a commit from Python, compared with Rust and with fdatasync on the same disk.

    python -m netram.bench [--quick] [--json] [--netram PROGRAM] [--dir DIRECTORY]

An encrypted lender runs as a process of its own on this machine during the measurement; with two cores, both sides spin
on a core each. Rounds of the rows alternate, and the medians over rounds are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import netram

#: Bytes that a transaction changes. With rvm's headers its record carries 128, as `netram-lab bench commit` does.
BYTES = 96
#: Bytes of the segment; commits go through it in sequence.
SEGMENT = 1 << 20


class Row(NamedTuple):
    """One measurement, in microseconds."""

    what: str
    p50: float
    p99: float


class Lender(NamedTuple):
    """A running lender."""

    address: str
    key_file: Path


@contextlib.contextmanager
def lender(program: str, directory: Path, spin: bool) -> Iterator[Lender]:
    """Runs a lender process with a new cluster key."""
    key_file = directory / "cluster.key"
    subprocess.run([program, "key", "create", key_file], check=True, stdout=subprocess.DEVNULL)
    memory = Path(f"/dev/shm/netram-bench-python-{os.getpid()}.mem")
    command = [program, "lender", "serve", "--with-parent", "--listen", "tcp://127.0.0.1:0", "--memory", "64MiB"]
    command += ["--key-file", str(key_file), "--store", str(memory), "--name", f"bench-python-{os.getpid()}"]
    if spin:
        command += ["--wait", "spin", "--pin", str(cores()[1])]
    with open(directory / "lender.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        address = ""
        for line in process.stdout:
            if line.startswith("listening "):
                address = line.split()[1]
            if line == "ready\n":
                break
        else:
            raise SystemExit(f"the lender did not start: {(directory / 'lender.log').read_text()}")
        yield Lender(address, key_file)
    finally:
        process.kill()
        # Also closes its pipe.
        process.communicate()
        # It was killed, and leaves the operator's socket too.
        for left in (memory, Path(f"{memory}.operator")):
            left.unlink(missing_ok=True)


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def timed(work: Callable[[int], object], seconds: float) -> list[int]:
    """Calls work repeatedly for some seconds; returns the nanoseconds of each call."""
    clock, taken = time.perf_counter_ns, []
    end = clock() + int(seconds * 1e9)
    number, began = 0, clock()
    while began < end:
        work(number)
        done = clock()
        taken.append(done - began)
        number, began = number + 1, clock()
    return taken


def summary(what: str, rounds: list[list[int]]) -> Row:
    """The median over rounds of each round's percentiles."""

    def percentile(part: float) -> float:
        return statistics.median(sorted(one)[int(part * (len(one) - 1))] for one in rounds) / 1e3

    return Row(what, percentile(0.5), percentile(0.99))


def from_python(directory: Path, at: Lender, spin: bool, rounds: int, seconds: float) -> list[Row]:
    """Commits through this package, and fdatasync, in alternating rounds."""
    store = netram.open(
        directory / "bench.log",
        create=True,
        log_size="64MiB",
        lenders=[at.address],
        key_file=at.key_file,
        one_domain=True,
        wait="spin" if spin else None,
    )
    region = store.segment(directory / "bench.data", size=SEGMENT, create=True).map()
    store.wait_for_lenders()
    view, data = memoryview(region), bytes(BYTES)
    flat = os.open(directory / "flat", os.O_RDWR | os.O_CREAT)
    os.pwrite(flat, bytes(SEGMENT), 0)
    os.fsync(flat)

    def place(number: int) -> int:
        return number * 128 % SEGMENT

    def write(number: int) -> None:
        with store.transaction() as tx:
            tx.write(region, place(number), data)

    def declare(number: int) -> None:
        part = view[place(number) : place(number) + BYTES]
        with store.transaction() as tx:
            tx.set_range(part)
            part[0] = number & 255

    def lazy(number: int) -> None:
        with store.transaction("lazy") as tx:
            tx.write(region, place(number), data)

    def sync(number: int) -> None:
        os.pwrite(flat, data, place(number))
        os.fdatasync(flat)

    works: dict[str, Callable[[int], None]] = {
        "remote commit, tx.write": write,
        "remote commit, tx.set_range of a view": declare,
        "lazy commit, tx.write": lazy,
        "pwrite and fdatasync": sync,
    }
    taken: dict[str, list[list[int]]] = {what: [] for what in works}
    allowed = os.sched_getaffinity(0)
    # The first round warms up and is discarded.
    for number in range(rounds + 1):
        for what, work in works.items():
            if spin:
                # Only this thread: the store's own threads are already running.
                os.sched_setaffinity(0, {cores()[0]})
            one = timed(work, seconds)
            os.sched_setaffinity(0, allowed)
            store.flush()
            if number > 0:
                taken[what].append(one)
    os.close(flat)
    del view
    store.close()
    return [summary(what, several) for what, several in taken.items()]


def from_rust(program: str, directory: Path, quick: bool) -> Row:
    """The same record, measured by `netram-lab bench commit`."""
    command = [program, "bench", "commit", "--members", "1", "--json", "--dir", str(directory)]
    ran = subprocess.run(command + ["--quick"] * quick, check=True, capture_output=True, text=True)
    commit = json.loads(ran.stdout)["rows"][0]["commit"]
    return Row("remote commit from Rust, the journal alone", commit["p50_us"], commit["p99_us"])


def measure(program: str, directory: Path, quick: bool) -> list[Row]:
    """Measures every row."""
    rounds, seconds = (2, 0.1) if quick else (7, 0.5)
    spin = len(cores()) > 1
    with lender(program, directory, spin) as at:
        rows = from_python(directory, at, spin, rounds, seconds)
    return [*rows, from_rust(program, directory, quick)]


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m netram.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short rounds, to check that everything works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--netram", default=os.environ.get("NETRAM", "netram"), help="the program (default: netram)")
    parser.add_argument("--dir", default="/var/tmp", help="directory of the log, on the disk to be measured")
    chosen = parser.parse_args(arguments)
    program = shutil.which(chosen.netram)
    if program is None:
        parser.error(f"no program {chosen.netram}; install netram (`make install`) or pass its path with --netram")
    with tempfile.TemporaryDirectory(prefix="netram-python-", dir=chosen.dir) as directory:
        rows = measure(program, Path(directory), chosen.quick)
    if chosen.json:
        found: dict[str, Any] = {"rows": [row._asdict() for row in rows], "load": os.getloadavg()[0]}
        print(json.dumps(found, indent=2))
        return 0
    print(f"{BYTES} bytes a transaction, 1 lender, encrypted, load {os.getloadavg()[0]:.1f}")
    print(f"{'':46}{'p50 us':>10}{'p99 us':>10}")
    for row in rows:
        print(f"{row.what:46}{row.p50:10.1f}{row.p99:10.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
