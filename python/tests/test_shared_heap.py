"""Persistent heaps in shared regions: blocks shared by nodes of this process and of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Server, newer_heap, until

import netram
import netram.shared
from netram.shared import Node, NodeHeap

EXAMPLE = Path(__file__).parents[1] / "examples" / "list.py"


def formatted(node: Node, lock: int) -> NodeHeap:
    with node.begin() as txn:
        txn.acquire(lock)
        txn.format_heap(lock)
    return opened(node, lock)


def opened(node: Node, lock: int) -> NodeHeap:
    with node.begin() as txn:
        txn.acquire(lock, "shared")
        return txn.heap(lock)


def test_a_block_of_one_node_can_be_freed_by_another(heaps: Server) -> None:
    with heaps.join("one") as one, heaps.join("two") as two:
        heap = formatted(one, 1)
        with one.begin() as txn:
            txn.acquire(1)
            block = heap.store(txn, b"Ada")
            heap.set_root(txn, 0, block)
            room = heap.allocate(txn, 100)
        assert heap.lock == 1 and heap.root(0) == block and heap.read(block, 3) == b"Ada"
        with two.begin() as txn:
            txn.acquire(1)
            other = txn.heap(1)
            assert other.root(0) == block, "a block is an offset in the region, the same in every node"
            other.write(txn, block, b"o", offset=2)
            assert other.size(block) >= 3 and other.size(room) >= 100
            moved = other.resize(txn, room, 20000)
            other.free(txn, moved)
        assert other.check() == [(block, other.size(block))]
        with one.begin() as txn:
            txn.acquire(1)
            assert heap.read(block, 3) == b"Ado" and two.memory[block : block + 3] == b"Ado"
            statistics = heap.statistics(txn)
            assert statistics.bytes_taken == heap.size(block) and statistics.allocations == 2
        with pytest.raises(ZeroDivisionError), one.begin() as txn:
            txn.acquire(1)
            heap.free(txn, block)
            heap.set_root(txn, 0, 0)
            raise ZeroDivisionError
        assert heap.root(0) == block and heap.check() == [(block, heap.size(block))], "an abort takes it back"


def test_a_heap_is_used_under_its_lock(heaps: Server) -> None:
    with heaps.join("one") as node:
        heap = formatted(node, 1)
        with node.begin() as txn:
            with pytest.raises(netram.shared.NotHeld) as unheld:
                txn.heap(1)
            assert unheld.value.lock == 1
            with pytest.raises(netram.shared.LockError):
                txn.heap(4000)
            txn.acquire(1, "shared")
            for use in (
                lambda: heap.allocate(txn, 8),
                lambda: heap.store(txn, b"x"),
                lambda: heap.set_root(txn, 0, 0),
                lambda: heap.statistics(txn),
                lambda: txn.format_heap(1),
            ):
                with pytest.raises(netram.shared.NotHeld):
                    use()
        with node.begin() as txn:
            txn.acquire_all([0, 1])
            with pytest.raises(netram.NoHeap):
                txn.heap(0)
            with pytest.raises(netram.NoRoom):
                heap.allocate(txn, 1 << 30)
            block = heap.store(txn, b"12")
            with pytest.raises(netram.RangeError):
                heap.write(txn, block, bytes(heap.size(block)), 1)
            with pytest.raises(netram.HeapError):
                heap.write(txn, block + 1, b"x")
            with pytest.raises(netram.RangeError):
                heap.read(block, 1 << 20)
            with pytest.raises(netram.RangeError):
                heap.root(64)
            with pytest.raises(netram.HeapError):
                heap.free(txn, block + 16)
            heap.free(txn, block)
            with pytest.raises(netram.HeapError):
                heap.free(txn, block)
            with pytest.raises(netram.BusyError):
                txn.format_heap(1)
        with pytest.raises(netram.ClosedError):
            heap.allocate(txn, 8)


def test_a_block_is_written_by_its_heap_and_a_transaction_of_its_node(heaps: Server) -> None:
    with heaps.join("one") as one, heaps.join("two") as two:
        first, second = formatted(one, 0), formatted(one, 1)
        other = opened(two, 1)
        with one.begin() as txn:
            txn.acquire_all([0, 1])
            block = second.store(txn, b"mine")
        with one.begin() as txn:
            txn.acquire_all([0, 1])
            with pytest.raises(netram.HeapError):
                first.write(txn, block, b"lost")
        with two.begin() as txn:
            txn.acquire(1, "shared")
            assert other.read(block, 4) == b"mine"
        with one.begin() as txn:
            txn.acquire(1)
            # The other node's block would be stored in this node's copy.
            with pytest.raises(netram.RangeError):
                other.write(txn, block, b"lost")
        with one.begin() as txn:
            txn.acquire(1, "shared")
            with pytest.raises(netram.shared.NotHeld) as unheld:
                second.write(txn, block, b"lost")
            assert unheld.value.lock == 1
            assert second.read(block, 4) == b"mine"
        with two.begin() as txn:
            txn.acquire(1, "shared")
            assert other.read(block, 4) == b"mine"


def test_a_heap_of_a_later_version_does_not_count_as_none(heaps: Server) -> None:
    with heaps.join("one") as one:
        formatted(one, 0)
        with one.begin() as txn:
            txn.acquire(0)
            txn.write(0, newer_heap(one.memory[:36]))
    with heaps.join("two") as two:
        with two.begin() as txn:
            txn.acquire(0)
            with pytest.raises(netram.HeapError, match="version") as newer:
                txn.heap(0)
            assert not isinstance(newer.value, netram.NoHeap)
        before = two.memory[:4096]
        command: list[str | Path] = [sys.executable, EXAMPLE, heaps.address, heaps.directory / "three", heaps.key]
        adder = subprocess.run([*command, "add", "milk"], cwd="/", capture_output=True, text=True)
        assert adder.returncode != 0 and "version" in adder.stderr
        with two.begin() as txn:
            txn.acquire(0, "shared")
            assert two.memory[:4096] == before, "the example has made no heap over it"


def test_a_reformatted_heap_invalidates_the_old_object(heaps: Server) -> None:
    node = heaps.join("one")
    old = formatted(node, 1)
    new = formatted(node, 1)
    with pytest.raises(netram.ClosedError, match="formatted"):
        old.root(0)
    assert new.root(0) == 0
    with heaps.join("two") as two, two.begin() as txn:
        other = opened(node, 1)
        txn.acquire(1)
        # The other node's region is not this transaction's.
        with pytest.raises(netram.RangeError):
            other.allocate(txn, 8)
    node.leave()
    with pytest.raises(netram.ClosedError):
        new.root(0)


def test_a_reader_follows_a_list_in_the_pinned_state(heaps: Server) -> None:
    with heaps.join("one") as one, heaps.join("two") as two:
        heap = formatted(one, 1)
        with one.begin() as txn:
            txn.acquire(1)
            heap.set_root(txn, 0, heap.store(txn, b"first"))
        seen = opened(two, 1)
        with two.reader() as reader:
            block = seen.root(0)
            with one.begin() as txn:
                txn.acquire(1)
                heap.set_root(txn, 0, heap.store(txn, b"second"))
            until(lambda: reader.age[0] > 0)
            assert seen.root(0) == block and seen.read(block, 5) == reader.read(block, 5) == b"first"
            reader.accept()
            assert seen.read(seen.root(0), 6) == b"second"


def test_the_example_takes_each_entry_of_the_shared_list_once(heaps: Server) -> None:
    def start(name: str, *words: str) -> subprocess.Popen[str]:
        command: list[str | Path] = [sys.executable, EXAMPLE, heaps.address, heaps.directory / name, heaps.key, *words]
        return subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True)

    def lines(process: subprocess.Popen[str]) -> list[str]:
        said, _ = process.communicate(timeout=Server.PATIENCE)
        assert process.returncode == 0
        return said.split()

    adders = [start("one", "add", "milk", "bread", "salt"), start("two", "add", "ink", "paper", "pens")]
    assert [lines(adder) for adder in adders] == [[], []]
    shown = lines(start("one", "show"))
    assert [text for text in shown if text in ("milk", "bread", "salt")] == ["salt", "bread", "milk"]
    assert [text for text in shown if text in ("ink", "paper", "pens")] == ["pens", "paper", "ink"]
    takers = [start(name, "take") for name in ("one", "two", "three")]
    taken = [text for taker in takers for text in lines(taker)]
    assert sorted(taken + lines(start("one", "show"))) == sorted(shown) and len(taken) == 3
    for _ in range(3):
        lines(start("two", "take"))
    none = start("one", "take")
    assert none.communicate(timeout=Server.PATIENCE)[0] == "" and none.returncode == 1
