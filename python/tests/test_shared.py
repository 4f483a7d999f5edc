"""Shared regions: nodes of this process and of others, with a real server and a real lender."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from conftest import Child, Server, until

import netram
import netram.shared
from netram.shared import Node, NodeTransaction

SPAN, LOCKS, PATIENCE = Server.SPAN, Server.LOCKS, Server.PATIENCE

# Adds one under two locks at once, forever; prints each number after its commit.
TELLER = """
import sys, netram.shared
server, directory, key = sys.argv[1:]
node = netram.shared.join(server, directory, key_file=key, log_size="4MiB")
while True:
    with node.begin() as txn:
        txn.acquire_all([1, 2])
        one, two = txn.array(4096), txn.array(8192)
        assert one[0] == two[0]
        one += 1
        two += 1
        number = int(one[0])
    print(number, flush=True)
"""


def add(node: Node, lock: int) -> int:
    with node.begin() as txn:
        txn.acquire(lock)
        counter = txn.array(lock * SPAN)
        counter += 1
        return int(counter[0])


def get(node: Node, lock: int) -> int:
    with node.begin() as txn:
        txn.acquire(lock, "shared")
        return int.from_bytes(txn.read(lock * SPAN, 8), "little")


def test_a_commit_is_visible_to_another_node_under_the_lock(server: Server) -> None:
    with server.join("one") as one, server.join("two") as two:
        assert one.id != two.id and one.locks == LOCKS and len(one.memory) == SPAN * LOCKS
        assert one.span(2) == (2, 2 * SPAN, SPAN) and one.span_at(3 * SPAN - 1) == one.span(2)
        assert [add(one, 2), add(two, 2), get(one, 2)] == [1, 2, 2]
        txn = one.begin()
        txn.acquire(2)
        txn.write(2 * SPAN, b"seven")
        commit = txn.commit()
        assert commit == txn.result and commit.rule and commit.lenders == 1
        assert commit.record == (one.id, 2)
        assert two.outcome(*commit.record, timeout=PATIENCE) == "committed"
        assert two.wait_version(2, one.version(2), PATIENCE)
        assert two.memory[2 * SPAN : 2 * SPAN + 5] == b"seven" and two.memory[2 * SPAN] == ord("s")
        assert not two.wait_version(2, 99, 0.01)
        two.pull()
        assert one.left_behind == [] and one.gone is None
        assert one.blocked is None or "lender" in one.blocked
    assert one.closed and not list((server.directory / "one").iterdir()), "nothing is left of a node that left"


def test_an_exception_aborts_and_frees_the_lock(server: Server) -> None:
    with server.join("one") as node:
        add(node, 1)
        with pytest.raises(ZeroDivisionError), node.begin() as txn:
            txn.acquire(1)
            txn.array(SPAN)[:] = 99
            raise ZeroDivisionError
        assert not txn.open and txn.result is None
        assert get(node, 1) == 1
        with pytest.raises(netram.ClosedError):
            txn.commit()


def test_memory_is_written_under_its_lock_through_the_transaction(server: Server) -> None:
    with server.join("one") as node:
        whole = numpy.frombuffer(node.memory, dtype=numpy.int32)
        with pytest.raises(ValueError, match="read-only"):
            whole[0] = 1
        with node.begin() as txn:
            txn.acquire(3, "shared")
            txn.acquire(4)
            for refused in (
                lambda: txn.array(3 * SPAN),
                lambda: txn.write(4 * SPAN - 1, b"ab"),
                lambda: txn.set_range(3 * SPAN, 1),
                lambda: txn.memory(3 * SPAN, 8),
                lambda: txn.array(whole[3 * SPAN // 4 : 4 * SPAN // 4 + 1]),
                lambda: txn.read(2 * SPAN, 1),
            ):
                with pytest.raises(netram.shared.NotHeld) as caught:
                    refused()
                assert caught.value.lock in (2, 3)
            twin = txn.array(whole[SPAN : SPAN + 8 : 2])
            assert twin.dtype == numpy.int32 and twin.shape == (4,) and twin.strides == (8,)
            twin[:] = range(1, 5)
            backwards = txn.array(whole[SPAN + 16 : SPAN + 20][::-1].reshape(2, 2))
            backwards[:] = [[1, 2], [3, 4]]
            memoryview(txn.memory(4 * SPAN + 100, 3))[:] = b"abc"
            assert txn.array(whole[SPAN:SPAN]).shape == (0,)
            with pytest.raises(netram.RangeError):
                txn.array(numpy.zeros(3))
            with pytest.raises(netram.RangeError):
                txn.array(SPAN * LOCKS, 1)
            with pytest.raises(TypeError):
                txn.array(object())
            with pytest.raises(TypeError):
                txn.array(whole[:2], dtype="i4")
        assert list(whole[SPAN : SPAN + 8]) == [1, 0, 2, 0, 3, 0, 4, 0]
        assert list(whole[SPAN + 16 : SPAN + 20]) == [4, 3, 2, 1]
        assert node.memory[4 * SPAN + 100 : 4 * SPAN + 103] == b"abc"
        del whole, twin, backwards


def test_errors_name_the_lock_that_is_missing(server: Server) -> None:
    with server.join("one") as one, server.join("two") as two:
        holds, waits = one.begin(), two.begin()
        holds.acquire(1)
        waits.set_timeout(0.1)
        with pytest.raises(netram.shared.TimedOut) as late:
            waits.acquire(1, "shared")
        assert late.value.lock == 1 and isinstance(late.value, TimeoutError)
        waits.acquire(2)
        with pytest.raises(netram.shared.Died) as died:
            waits.acquire(1)
        assert died.value.lock == 1 and waits.open
        with pytest.raises(netram.shared.LockError) as none:
            waits.acquire(4000)
        assert none.value.lock == 4000
        with pytest.raises(ValueError, match='not "mine"'):
            waits.acquire(3, "mine")  # type: ignore[arg-type]
        holds.abort()
        waits.abort()
        never = one.begin(restore=False)
        never.acquire(2)
        with pytest.raises(netram.shared.LockError):
            never.acquire_all([1], shared=[3])
        never.commit()


def test_a_reader_sees_the_pinned_state_until_it_accepts(server: Server) -> None:
    with server.join("one") as one, server.join("two", pinned=4096) as two:
        add(one, 1)
        assert get(two, 1) == 1
        with two.reader() as reader:
            add(one, 1)
            until(lambda: reader.age[0] > 0)
            assert reader.read(SPAN, 8) == two.memory[SPAN : SPAN + 8] == bytes([1, 0, 0, 0, 0, 0, 0, 0])
            reader.accept()
            assert reader.read(SPAN, 1) == b"\2"
            with pytest.raises(netram.RangeError):
                reader.read(SPAN * LOCKS - 1, 2)
            # Too many commits are held back.
            while not reader.expired:
                add(one, 1)
            with pytest.raises(netram.shared.Expired):
                reader.read(SPAN, 1)
            reader.accept()
            reader.read(SPAN, 1)
        with pytest.raises(netram.ClosedError):
            reader.accept()


def test_a_node_cannot_leave_while_it_is_in_use(server: Server) -> None:
    node = server.join("one")
    view, txn = memoryview(node.memory), node.begin()
    with pytest.raises(BufferError, match="1 view"):
        node.leave()
    del view
    with pytest.raises(netram.BusyError):
        node.leave()
    txn.abort()
    reader = node.reader()
    with pytest.raises(netram.BusyError):
        node.abandon()
    reader.end()
    with pytest.raises(netram.InUse):
        server.join("one")
    memory = node.memory
    node.leave()
    node.leave()
    uses: list[Callable[[], object]] = [
        node.begin,
        node.reader,
        node.pull,
        lambda: node.id,
        lambda: node.memory,
        lambda: node.version(1),
        lambda: memory[0],
        lambda: memoryview(memory),
        lambda: txn.acquire(1),
    ]
    for use in uses:
        with pytest.raises(netram.ClosedError):
            use()
    assert node.closed and "left" in repr(node) and "ended" in repr(txn)


def test_an_array_outlives_every_other_object(server: Server) -> None:
    array = numpy.frombuffer(server.join("one").memory, dtype=numpy.uint8)
    assert array.sum() == 0
    other = server.join("two")
    add(other, 1)
    until(lambda: array[SPAN] == 1)
    del array
    other.leave()


def test_a_fenced_node_raises_gone_and_another_continues(server: Server) -> None:
    node = server.join("one")
    add(node, 1)
    txn = node.begin(restore=False)
    txn.acquire(1)
    txn.array(SPAN)[:] = 99
    txn.abort()
    assert node.gone is not None and "gone" in repr(node)
    with pytest.raises(netram.shared.Gone):
        node.begin()
    assert node.memory[SPAN] == 99, "it can be read still"
    was = node.id
    node.abandon()
    with server.join("one") as node:
        assert get(node, 1) == 1
        assert node.outcome(was, 1, PATIENCE) == "committed"
        assert node.outcome(was, 2, PATIENCE) == "aborted"


def test_many_threads_and_nodes_count_together(server: Server) -> None:
    nodes = [server.join("one"), server.join("two")]
    threads = [
        threading.Thread(target=lambda node=node: [add(node, lock) for lock in (1, 2) * 10]) for node in nodes * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for node in nodes:
        assert (get(node, 1), get(node, 2)) == (40, 40)
        node.leave()


def test_a_transaction_serves_one_thread_and_releases_the_interpreter(server: Server) -> None:
    with server.join("one") as one, server.join("two") as two:
        holds, waits = one.begin(), two.begin()
        holds.acquire(1)
        thread = threading.Thread(target=waits.acquire, args=(1,))
        thread.start()

        def busy() -> bool:
            try:
                waits.set_timeout(PATIENCE)
            except netram.BusyError:
                return True
            return False

        # This thread runs, so the other one waits without the interpreter.
        until(busy)
        holds.commit()
        thread.join()
        waits.commit()


def test_commits_of_a_killed_process_are_complete_for_the_next(
    server: Server, child: Callable[..., Child]
) -> None:
    tellers = [child(TELLER, server.address, server.directory / name, server.key) for name in ("three", "four")]
    said = max(int(teller.hears()) for teller in tellers for _ in range(30))
    for teller in tellers:
        teller.kill()
    with server.join("one") as node:
        assert get(node, 1) == get(node, 2) >= said
    # The victim's successor, which offers its records.
    with server.join("three") as node:
        assert get(node, 1) == get(node, 2) >= said


def test_a_child_of_fork_is_refused(server: Server, child: Callable[..., Child]) -> None:
    script = """
import os, sys, netram, netram.shared
server, directory, key = sys.argv[1:]
node = netram.shared.join(server, directory, key_file=key, log_size="4MiB")
txn, reader, memory = node.begin(), node.reader(), node.memory
txn.acquire(1)
child = os.fork()
if child == 0:
    refused = 0
    for use in (node.begin, node.leave, txn.commit, reader.accept, lambda: memory[0], lambda: memoryview(memory)):
        try:
            use()
        except netram.ClosedError:
            refused += 1
    del node, txn, reader, memory, use
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
reader.end()
txn.write(4096, b"x")
txn.commit()
node.leave()
print("left", flush=True)
"""
    forking = child(script, server.address, server.directory / "one", server.key)
    assert [forking.hears(), forking.hears(), forking.end()] == ["6", "left", 0]


def test_invalid_joins_raise_errors_with_a_reason(server: Server) -> None:
    key = server.key
    with pytest.raises(ValueError, match="insecure=True"):
        netram.shared.join(server.address, server.directory / "one")
    with pytest.raises(ValueError, match="contradicts"):
        netram.shared.join(server.address, server.directory / "one", key_file=key, insecure=True)
    with pytest.raises(ValueError, match='server "somewhere"'):
        netram.shared.join("somewhere", server.directory / "one", key_file=key)
    with pytest.raises(ValueError, match="not the id of a region"):
        server.join("one", region="zz")
    with pytest.raises(netram.shared.Gone, match="another region"):
        server.join("one", region="1")
    with pytest.raises(ValueError, match="not a number of seconds"):
        server.join("one", patience=-1.0)
    with pytest.raises(netram.shared.JoinError):
        server.join("one", key_file=server.directory / "no.key")
    with pytest.raises(netram.shared.JoinError):
        netram.shared.join("unix:/nobody.sock", server.directory / "one", key_file=key, patience=0.2)


def test_a_transaction_that_is_dropped_aborts(server: Server) -> None:
    with server.join("one") as node:
        def begun() -> NodeTransaction:
            txn = node.begin()
            txn.acquire(1)
            txn.array(SPAN)[:] = 99
            return txn

        begun()
        assert get(node, 1) == 0


def test_a_name_that_is_too_long_is_refused_with_the_limit(directory: Path) -> None:
    with pytest.raises(netram.shared.JoinError, match="257 bytes, but at most 256 are allowed"):
        netram.shared.join("tcp://127.0.0.1:1", directory / "node", insecure=True, name="y" * 257)
