"""The persistent heap of a region."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SIZE, Child, newer_heap, reopened

import netram


@pytest.fixture
def heap(region: netram.Region) -> netram.Heap:
    return netram.Heap.format(region)


def test_blocks_are_allocated_and_freed_by_their_transactions(store: netram.Store, heap: netram.Heap) -> None:
    with store.transaction() as tx:
        kept, freed = heap.store(tx, b"kept"), heap.store(tx, b"freed")
        empty = heap.allocate(tx, 100)
    assert heap.read(kept, 4) == b"kept"
    assert heap.size(empty) >= 100
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        gone = heap.store(tx, b"gone")
        heap.free(tx, kept)
        1 / 0
    with pytest.raises(netram.HeapError):
        heap.size(gone)
    with store.transaction() as tx:
        heap.free(tx, freed)
        heap.free(tx, empty)
    assert [block for block, _ in heap.check()] == [kept]
    statistics = heap.statistics()
    assert (statistics.allocations, statistics.frees) == (4, 3)
    assert 0 < statistics.bytes_taken < statistics.bytes_usable < statistics.bytes <= SIZE
    assert 0 <= statistics.fragmentation <= 1
    assert "netram.Heap" in repr(heap) and "netram.Heap" in repr(statistics)


def test_blocks_hold_data_and_other_blocks(store: netram.Store, region: netram.Region, heap: netram.Heap) -> None:
    with store.transaction() as tx:
        first = 0
        for number in range(10):
            first = heap.store(tx, first.to_bytes(8, "little") + bytes([number]))
        heap.set_root(tx, 3, first)
    walked, at = [], heap.root(3)
    while at:
        block = heap.read(at, 9)
        walked.append(block[8])
        assert region[at + 8] == block[8], "a block is an offset in the region"
        at = int.from_bytes(block[:8], "little")
    assert walked == list(reversed(range(10)))
    with store.transaction() as tx:
        heap.write(tx, first, b"\xff", 8)
        moved = heap.resize(tx, first, 50_000)
        heap.set_root(tx, 3, moved)
    assert heap.size(moved) >= 50_000
    assert heap.read(moved, 9)[8] == 255
    assert heap.read(moved)[:9] == heap.read(moved, 9)


def test_a_heap_is_found_again(directory: Path, child: Callable[..., Child]) -> None:
    script = """
import sys, netram
store = netram.open(sys.argv[1] + "/bank.log", create=True, log_size="1MiB")
heap = netram.Heap.format(store.segment(sys.argv[1] + "/bank.data", size=1 << 20, create=True).map())
for n in range(1000):
    with store.transaction("lazy") as tx:
        block = heap.store(tx, n.to_bytes(8, "little") * 10)
        if heap.root(0):
            heap.free(tx, heap.root(0))
        heap.set_root(tx, 0, block)
    if n == 500:
        store.flush()
        print("flushed", flush=True)
"""
    writer = child(script, directory)
    assert writer.hears() == "flushed"
    writer.kill()
    store, region = reopened(directory)
    heap = netram.Heap(region)
    [(block, _)] = heap.check()
    assert block == heap.root(0)
    assert int.from_bytes(heap.read(block, 8), "little") >= 500
    assert heap.read(block, 80) == heap.read(block, 8) * 10
    store.close()


def test_one_region_has_one_heap(store: netram.Store, region: netram.Region, heap: netram.Heap) -> None:
    again = netram.Heap(region)
    with store.transaction() as tx:
        blocks = {which.store(tx, b"x" * 100) for which in (heap, again) for _ in range(20)}
        assert len(blocks) == 40
        with pytest.raises(netram.BusyError):
            netram.Heap.format(region)
        with pytest.raises(netram.BusyError):
            region.unmap()
    assert len(again.check()) == 40
    with store.transaction() as one, store.transaction() as two:
        block = heap.store(one, b"one's")
        with pytest.raises(netram.BusyError, match="another open transaction"):
            again.free(two, block)
    netram.Heap.format(region)
    assert heap.check() == again.check() == []


def test_an_invalid_block_is_refused(
    store: netram.Store, region: netram.Region, heap: netram.Heap, directory: Path
) -> None:
    with store.transaction() as tx:
        block = heap.store(tx, b"block")
    with store.transaction() as tx:
        for wrong in (0, block + 1, block + 16, SIZE, 2**62):
            with pytest.raises(netram.HeapError):
                heap.free(tx, wrong)
            with pytest.raises(netram.HeapError):
                heap.read(wrong)
            with pytest.raises(netram.HeapError):
                heap.write(tx, wrong, b"x")
            with pytest.raises(netram.HeapError):
                heap.resize(tx, wrong, 10)
        with pytest.raises(netram.RangeError):
            heap.free(tx, -1)
        heap.free(tx, block)
        with pytest.raises(netram.HeapError, match="already freed"):
            heap.free(tx, block)
    with store.transaction() as tx:
        block = heap.store(tx, b"block")
        for length in (heap.size(block) + 1, 2**64 - 1):
            with pytest.raises(netram.RangeError, match="outside the block"):
                heap.read(block, length)
        with pytest.raises(netram.RangeError, match="outside the block"):
            heap.write(tx, block, b"ab", heap.size(block) - 1)
        for root in (64, 2**40):
            with pytest.raises(netram.RangeError, match="does not exist"):
                heap.set_root(tx, root, block)
            with pytest.raises(netram.RangeError, match="does not exist"):
                heap.root(root)
        with pytest.raises(TypeError):
            heap.store(tx, "text")  # type: ignore[arg-type]
    with pytest.raises(netram.ClosedError, match="has ended"):
        heap.store(tx, b"late")
    with netram.open(directory / "other.log", create=True, log_size="64KiB") as other, other.transaction() as foreign:
        with pytest.raises(netram.RangeError, match="another log"):
            heap.store(foreign, b"x")
        with pytest.raises(netram.RangeError, match="another log"):
            heap.free(foreign, block)
    assert [place for place, _ in heap.check()] == [block]


def test_a_full_heap_raises_no_room_and_can_be_emptied(store: netram.Store, heap: netram.Heap) -> None:
    blocks = []
    with pytest.raises(netram.NoRoom, match="no room for") as full:
        while True:
            with store.transaction("lazy") as tx:
                block = heap.allocate(tx, 10_000)
            blocks.append(block)
    assert isinstance(full.value, MemoryError)
    assert len(blocks) > 50
    assert heap.statistics().refused == 1
    with store.transaction() as tx:
        for block in blocks:
            heap.free(tx, block)
    assert heap.check() == []
    with store.transaction() as tx:
        heap.allocate(tx, 500_000)


def test_regions_without_a_heap_or_with_a_damaged_one(store: netram.Store, region: netram.Region, directory: Path) -> None:
    with pytest.raises(netram.NoHeap, match="no heap"):
        netram.Heap(region)
    small = store.segment(directory / "small", size=4096, create=True).map()
    with pytest.raises(netram.HeapError, match="a heap needs"):
        netram.Heap.format(small)
    with pytest.raises(TypeError):
        netram.Heap(memoryview(region))  # type: ignore[arg-type]
    netram.Heap.format(region)
    region.unmap()
    region = store.segment(directory / "bank.data").map()
    with store.transaction() as tx:
        tx.write(region, 20, b"\xff")
    with pytest.raises(netram.HeapError, match="header is damaged") as damaged:
        netram.Heap(region)
    assert not isinstance(damaged.value, netram.NoHeap)


def test_a_heap_of_a_later_version_does_not_count_as_none(
    store: netram.Store, region: netram.Region, heap: netram.Heap, directory: Path
) -> None:
    """Programs make a heap if there is none, which would erase this one."""
    with store.transaction() as tx:
        tx.write(region, 0, newer_heap(region[:36]))
    region.unmap()
    region = store.segment(directory / "bank.data").map()
    with pytest.raises(netram.HeapError, match="version") as newer:
        netram.Heap(region)
    assert not isinstance(newer.value, netram.NoHeap)


def test_a_heap_is_closed_with_its_region(store: netram.Store, region: netram.Region, heap: netram.Heap) -> None:
    with store.transaction() as tx:
        block = heap.store(tx, b"x")
    region.unmap()
    with store.transaction() as tx:
        for use in (
            lambda: heap.store(tx, b"x"),
            lambda: heap.read(block),
            lambda: heap.root(0),
            lambda: heap.size(block),
            heap.check,
            heap.statistics,
            lambda: netram.Heap(region),
            lambda: netram.Heap.format(region),
        ):
            with pytest.raises(netram.ClosedError, match="unmapped"):
                use()
    assert "unmapped" in repr(heap)


def test_threads_share_a_heap(store: netram.Store, heap: netram.Heap) -> None:
    def work(number: int) -> list[int]:
        kept = []
        for turn in range(60):
            with store.transaction("lazy") as tx:
                block = heap.store(tx, bytes([number]) * (16 + turn * 7))
                if turn % 3 == 0:
                    tx.abort()
                    continue
            kept.append(block)
        return kept

    with ThreadPoolExecutor(4) as pool:
        blocks = list(pool.map(work, range(1, 5)))
    assert sorted(block for several in blocks for block in several) == [block for block, _ in heap.check()]
    for number, several in enumerate(blocks, 1):
        assert all(heap.read(block, 16) == bytes([number]) * 16 for block in several)
