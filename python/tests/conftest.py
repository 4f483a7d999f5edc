"""Fixtures: a store in a temporary directory, and lenders as separate processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import netram
import netram.shared

SIZE = 1 << 20
_names = itertools.count()


def program() -> str:
    """Path of the netram program: from `cargo build`, unless NETRAM is set."""
    target = os.environ.get("CARGO_TARGET_DIR", str(Path(__file__).parents[2] / "target"))
    return os.environ.get("NETRAM", f"{target}/debug/netram")


class Lender:
    """A lender process. `stop` kills it and frees its memory."""

    def __init__(self, *arguments: str, size: str = "16MiB") -> None:
        self.size = size
        self.name = f"python-{os.getpid()}-{next(_names)}"
        self.memory = Path(f"/dev/shm/netram-{self.name}.mem")
        self.arguments = arguments or ("--insecure",)
        # Bound and not listening: while the lender is down, nobody else gets its port. A server may listen there.
        self.port = socket.socket()
        self.port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port.bind(("127.0.0.1", 0))
        self.start(f"tcp://127.0.0.1:{self.port.getsockname()[1]}")

    def start(self, listen: str) -> None:
        command = [program(), "lender", "serve", "--with-parent", "--memory", self.size, "--listen", listen]
        command += ["--name", self.name, "--store", str(self.memory), *self.arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening "):
                self.address = line.split()[1]
            if line == "ready\n":
                return
        self.stop()
        raise AssertionError("the lender ended before it was ready")

    def kill(self) -> None:
        """Kills the process. Its memory stays, for `restart`."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        self.kill()
        self.port.close()
        self.memory.unlink(missing_ok=True)
        Path(f"{self.memory}.operator").unlink(missing_ok=True)

    def restart(self) -> None:
        """Starts it again at the same address, with the memory that remains."""
        self.start(self.address)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the user's own settings from the environment."""
    without_settings(monkeypatch)


@pytest.fixture
def lender() -> Iterator[Callable[..., Lender]]:
    """Starts lenders, and stops them when the test ends."""
    started: list[Lender] = []

    def start(*arguments: str, size: str = "16MiB") -> Lender:
        started.append(Lender(*arguments, size=size))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(directory: Path) -> Iterator[netram.Store]:
    """A store without lenders. It must be closable when the test ends, unless the test closed it."""
    store = netram.open(directory / "bank.log", create=True, log_size="1MiB")
    yield store
    store.close()


@pytest.fixture
def region(store: netram.Store, directory: Path) -> netram.Region:
    return store.segment(directory / "bank.data", size=SIZE, create=True).map()


def reopened(directory: Path, segment: str = "bank.data", **settings: Any) -> tuple[netram.Store, netram.Region]:
    """Opens the store of `directory` again; returns it with its segment."""
    store = netram.open(directory / "bank.log", **settings)
    return store, store.segment(directory / segment).map()


class Server:
    """`netram shared serve` for a new region. Its lease is longer than a node is silent on a busy machine."""

    SPAN, LOCKS = 4096, 8
    #: Longer than any step takes on a busy machine.
    PATIENCE = 60.0

    def __init__(self, directory: Path, lender: Lender, key: Path, span: int = SPAN, locks: int = LOCKS, lease: str = "10s") -> None:
        self.directory, self.key, self.bytes = directory, key, span * locks
        self.region, self.lease = directory / "region", lease
        self.address = f"unix:{directory}/server.sock"
        create: list[str | Path] = [program(), "shared", "create", self.region, "--size", str(self.bytes), "--span-size", str(span)]
        subprocess.run([*create, "--lender", lender.address], check=True, stdout=subprocess.DEVNULL)
        self.serve()

    def serve(self) -> None:
        command: list[str | Path] = [program(), "shared", "serve", self.region, "--listen", self.address, "--key-file", self.key]
        self.process = subprocess.Popen(
            [*command, "--lease", self.lease, "--with-parent"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert "ready\n" in iter(self.process.stdout.readline, ""), "the server ended before it was ready"

    def join(self, name: str, **options: Any) -> netram.shared.Node:
        patience: dict[str, Any] = {"lock_timeout": self.PATIENCE, "patience": self.PATIENCE}
        ours: dict[str, Any] = {"key_file": self.key, "log_size": "4MiB", **patience, **options}
        return netram.shared.join(self.address, self.directory / name, **ours)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def without_settings(patch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("NETRAM_"):
            patch.delenv(name)


@contextlib.contextmanager
def served(directory: Path, **shape: Any) -> Iterator[Server]:
    """A lender and a server."""
    key = directory / "cluster.key"
    # Both are stopped, whatever happens to the server or the test.
    with contextlib.ExitStack() as ended:
        with pytest.MonkeyPatch.context() as patch:
            without_settings(patch)
            subprocess.run([program(), "key", "create", key], check=True, stdout=subprocess.DEVNULL)
            # For the windows of several nodes, including ended ones that are not forgotten yet.
            lender = Lender("--key-file", str(key), "--domain", "ups-1", size="128MiB")
            ended.callback(lender.stop)
            server = Server(directory, lender, key, **shape)
            ended.callback(server.stop)
        yield server


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests, because it needs four programs."""
    with served(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture(scope="session")
def serving_heaps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two locks, each covering enough for a heap."""
    with served(tmp_path_factory.mktemp("heaps"), span=1 << 17, locks=2) as server:
        yield server


def erased(server: Server, directory: Path) -> Server:
    """The server with its region zeroed, and a directory for this test's nodes."""
    server.directory = directory
    with server.join("eraser") as node, node.begin() as txn:
        txn.acquire_all([lock for lock, _, _ in node.spans])
        txn.write(0, bytes(server.bytes))
    return server


@pytest.fixture
def server(serving: Server, own_settings: None, tmp_path: Path) -> Server:
    return erased(serving, tmp_path)


@pytest.fixture
def heaps(serving_heaps: Server, own_settings: None, tmp_path: Path) -> Server:
    return erased(serving_heaps, tmp_path)


def until(what: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + Server.PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.001)


def crc32c(data: bytes) -> int:
    """The checksum of stored data (docs/design/heap.md)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def newer_heap(header: bytes) -> bytes:
    """The first 36 bytes of a heap with a later version."""
    header = header[:8] + (2).to_bytes(4, "little") + header[12:32]
    return header + crc32c(header).to_bytes(4, "little")


class Child:
    """A Python process that runs `script`; its output is read line by line, and it can be killed."""

    def __init__(self, script: str, *arguments: object) -> None:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        # Not in the current directory, where Python would import the package from its source.
        self.process = subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hears(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def killed(self) -> str:
        """Kills the process; returns what it had printed and nobody had read."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGKILL)
        left = self.process.stdout.read()
        self.end()
        return left

    def end(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        return code


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start(script: str, *arguments: object) -> Child:
        started.append(Child(script, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
