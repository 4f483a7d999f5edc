"""Far memory: arrays that are partly at lenders, with real lenders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from conftest import Lender, until

import netram
import netram.far

LOCAL = 1 << 20
SIZE = 16 << 20


def opened(*lenders: Lender, local: int = LOCAL, size: int = SIZE, copies: int = 2) -> netram.far.Arena:
    """An arena; skips the test on a machine without far memory."""
    addresses = [lender.address for lender in lenders]
    try:
        return netram.far.open(size, local, lenders=addresses, insecure=True, copies=copies)
    except netram.OpenError as error:
        if "userfaultfd" in str(error):
            pytest.skip(str(error))
        raise


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_an_array_four_times_the_cap_survives_the_death_of_a_lender(
    lender: Callable[..., Lender],
) -> None:
    one, two = lender(size="64MiB"), lender(size="64MiB")
    arena = opened(one, two)
    numbers = arena.empty((512, 1024), "int64")
    assert numbers.shape == (512, 1024) and not numbers[77].any(), "it begins with zeros"
    numbers[:] = numpy.arange(512 * 1024).reshape(512, 1024)
    status = arena.status()
    assert status.used <= status.cap == LOCAL // 4096 and status.sent > 0
    # Every page has both of its copies.
    until(lambda: arena.status().short == 0 and arena.status().aside == 0)
    one.kill()
    expected = numpy.arange(512 * 1024).reshape(512, 1024)
    assert (numbers == expected).all() and numbers.sum() == expected.sum()
    assert arena.status().fetched > 0 and arena.status().lost == 0


def test_numpy_results_in_far_memory_equal_those_in_local_memory(lender: Callable[..., Lender]) -> None:
    arena = opened(lender(size="64MiB"), copies=1)
    own = numpy.random.default_rng(1).random((300, 1000))
    far = netram.far.empty((300, 1000), arena=arena)
    far[:] = own
    assert (far.T @ far[:, :50] == own.T @ own[:, :50]).all()
    turned = netram.far.empty((1000, 300), order="F", arena=arena)
    turned[:] = far.T
    assert turned.flags.f_contiguous and (turned == own.T).all()
    flat = far.reshape(-1)
    flat.sort()
    assert (flat == numpy.sort(own, axis=None)).all()


def test_an_arena_works_with_a_local_disk_and_no_lender(directory: Path) -> None:
    try:
        arena = netram.far.open(SIZE, LOCAL, spill=directory, spill_size="64MiB")
    except netram.OpenError as error:
        if "userfaultfd" in str(error):
            pytest.skip(str(error))
        raise
    numbers = arena.empty(SIZE // 16, "int64")
    numbers[:] = numpy.random.default_rng(2).integers(0, 1 << 60, SIZE // 16)
    assert (numbers == numpy.random.default_rng(2).integers(0, 1 << 60, SIZE // 16)).all()
    status = arena.status()
    assert status.fetched > 0 and status.lost == 0 and status.linked == 0
    assert not list(directory.iterdir()), "the file has no name"


def test_a_file_can_be_read_into_remote_pages(lender: Callable[..., Lender], directory: Path) -> None:
    arena = opened(lender(size="64MiB"), copies=1)
    content = os.urandom(4 << 20)
    (directory / "content").write_bytes(content)
    memory = arena.memory("4MiB")
    numpy.frombuffer(memory, dtype="uint8")[:] = 1
    with (directory / "content").open("rb", buffering=0) as file:
        view = memoryview(memory)
        at = 0
        while at < len(view):
            at += file.readinto(view[at : at + 100_000])
    assert bytes(memory) == content


def test_memory_is_freed_with_its_last_view_and_outlives_the_arena_object(lender: Callable[..., Lender]) -> None:
    arena = opened(lender(size="64MiB"), copies=1)
    for _ in range(3):
        half = arena.empty(SIZE // 16, "int64")
        part = half[7:]
        del half
        with pytest.raises(netram.NoRoom, match="contiguous"):
            arena.empty(SIZE, "int8")
        assert not part.any(), "what another had there is gone"
        part[:] = 3
        del part
    last = arena.empty(SIZE, "int8")
    # Released explicitly: netram.far.empty keeps the first arena of a process.
    del arena
    last[:] = 5
    assert (last == 5).all()


def test_invalid_arguments_raise_errors_with_the_remedy(lender: Callable[..., Lender]) -> None:
    address = lender().address
    with pytest.raises(netram.OpenError, match="256 KiB at least"):
        netram.far.open("1MiB", 4096, lenders=[address], insecure=True)
    with pytest.raises(netram.OpenError, match="lenders"):
        netram.far.open("1MiB", "1MiB")
    with pytest.raises(netram.OpenError, match="no-such-directory"):
        netram.far.open("1MiB", "1MiB", spill="no-such-directory")
    with pytest.raises(ValueError, match="key_file"):
        netram.far.open("1MiB", "1MiB", lenders=[address])
    with pytest.raises(netram.OpenError, match="no-such-key"):
        netram.far.open("1MiB", "1MiB", lenders=[address], key_file="no-such-key")
    with pytest.raises(ValueError, match="replacement"):
        netram.far.open("1MiB", "1MiB", lenders=[address], insecure=True, replacement="any")
    arena = opened(lender())
    with pytest.raises(TypeError, match="no Python objects"):
        arena.empty(3, object)
    with pytest.raises(ValueError, match="below zero"):
        arena.empty((3, -1))
    assert arena.empty((3, 0)).shape == (3, 0)
    alone = run("import netram.far; netram.far.empty(3)")
    assert "ClosedError" in alone.stderr and "netram.far.open" in alone.stderr


FORKING = """
import os, sys, netram, netram.far
arena = netram.far.open("1MiB", "1MiB", lenders=sys.argv[1:], insecure=True)
numbers = netram.far.empty(1000, "int64")
numbers[:] = 7
child = os.fork()
if child == 0:
    try:
        arena.memory(10)
    except netram.ClosedError:
        # An access is a segmentation fault and never returns zeros.
        os._exit(int(numbers[3]) == 7)
    os._exit(9)
_, status = os.waitpid(child, 0)
print(os.WIFSIGNALED(status) and os.WTERMSIG(status))
assert (numbers == 7).all()
"""


def test_a_forked_child_has_no_far_memory(lender: Callable[..., Lender]) -> None:
    one = lender()
    opened(one)
    ran = run(FORKING, one.address)
    assert (ran.returncode, ran.stdout) == (0, f"{int(signal.SIGSEGV)}\n"), ran.stderr


def with_words(words: int | str, one: Lender) -> netram.far.Arena:
    """An arena with access to single elements; skips the test on a machine without far memory."""
    try:
        return netram.far.open(SIZE, LOCAL, lenders=[one.address], insecure=True, copies=1, words=words, packed=0)
    except netram.OpenError as error:
        if "userfaultfd" in str(error):
            pytest.skip(str(error))
        raise


def test_elements_are_gathered_and_scattered_without_their_pages(lender: Callable[..., Lender]) -> None:
    arena = with_words(100, lender(size="64MiB"))
    own = numpy.random.default_rng(3).random((2000, 512))
    far = arena.empty((2000, 512))
    far[:] = own
    # No more of the first 1000 rows, one page each, are local than the cap allows. No page is being transferred.
    until(lambda: arena.status().aside == 0 and arena.status().used < arena.status().cap)
    before = arena.status()
    column = numpy.arange(1000) * 512
    assert (netram.far.gather(far, column + 7) == own[:1000, 7]).all()
    after = arena.status()
    assert after.fetched == before.fetched and 1000 - before.used <= after.words <= 1000
    netram.far.scatter(far, column + 8, own[:1000, 7])
    own[:1000, 8] = own[:1000, 7]
    # Some pages may be fetched, because no frame was free for their elements.
    after = arena.status()
    assert 0 < after.written <= 1000 and after.patched > 0
    out = numpy.empty((500, 2))
    places = column.reshape(500, 2) + 8
    assert netram.far.gather(far, places, out) is out
    assert (out == own.reshape(-1)[places]).all()
    # Negative indices, a slice, a repeated index, integers, one value for all.
    part = far[3:1500]
    netram.far.scatter(part, [0, -1, 0], [1, 2, 3])
    own[3, 0], own[1499, -1] = 3, 2
    netram.far.scatter(part.reshape(-1), numpy.array([5, 6], "uint8"), 4)
    own[3, 5:7] = 4
    assert netram.far.gather(part, -1) == 2 and netram.far.gather(part, []).shape == (0,)
    assert (far == own).all()


def test_measured_words_follow_costs_and_arenas_without_words_fetch_pages(lender: Callable[..., Lender]) -> None:
    one = lender(size="64MiB")
    for arena in (with_words("measured", one), opened(one, copies=1)):
        far = arena.empty(SIZE // 16, "int64")
        far[:] = numpy.arange(SIZE // 16)
        places = numpy.random.default_rng(4).permutation(SIZE // 16)[:3000]
        netram.far.scatter(far, places, -places)
        assert (netram.far.gather(far, places) == -places).all()
        own = numpy.arange(SIZE // 16)
        own[places] = -places
        assert (far == own).all()


def test_invalid_indices_are_refused(lender: Callable[..., Lender]) -> None:
    arena = with_words(8, lender())
    far = arena.empty((10, 10))
    for places in (100, -101, [3, 100]):
        with pytest.raises(IndexError, match="of 100"):
            netram.far.gather(far, places)
        with pytest.raises(IndexError, match="of 100"):
            netram.far.scatter(far, places, 1)
    with pytest.raises(TypeError, match="whole numbers"):
        netram.far.gather(far, 0.5)
    with pytest.raises(TypeError, match="not in far memory"):
        netram.far.gather(numpy.zeros(3), 0)
    with pytest.raises(ValueError, match="contiguous"):
        netram.far.gather(far.T, 0)
    assert arena.memory(4096).gather(2**62, b"") == b"", "no element, of whatever size"
    with pytest.raises(ValueError, match="do not fit"):
        netram.far.gather(far, [1, 2], numpy.empty(3))
    with pytest.raises(netram.OpenError, match="from 1 to 256"):
        netram.far.open("1MiB", "1MiB", lenders=[lender().address], insecure=True, words=257)
    with pytest.raises(ValueError, match="measured"):
        netram.far.open("1MiB", "1MiB", lenders=[lender().address], insecure=True, words="any")
