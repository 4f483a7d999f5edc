"""Many threads, the interpreter released while a call waits, and forks."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SIZE, Child, reopened

import netram


def test_threads_commit_at_once(directory: Path) -> None:
    count, commits = 8, 50
    with netram.open(directory / "bank.log", create=True, log_size="1MiB") as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()

        def teller(place: int) -> None:
            for n in range(1, commits + 1):
                with store.transaction() as tx:
                    tx.write(region, place * 4096, n.to_bytes(8, "little"))

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(teller, range(count)))
        assert store.statistics().flush_commits == count * commits
    store, region = reopened(directory)
    assert [int.from_bytes(region[n * 4096 : n * 4096 + 8], "little") for n in range(count)] == [commits] * count
    store.close()


def test_one_transaction_is_for_one_thread_at_a_time(store: netram.Store, region: netram.Region) -> None:
    tx = store.transaction("disk")
    tx.write(region, 0, b"x")
    barrier, refused, done = threading.Barrier(5), [], []

    def commit() -> None:
        barrier.wait()
        try:
            done.append(tx.commit())
        except (netram.BusyError, netram.ClosedError) as error:
            refused.append(error)

    threads = [threading.Thread(target=commit) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(done), len(refused)) == (1, 4)
    assert tx.result == done[0]


def test_other_threads_run_while_a_commit_waits(directory: Path, child: Callable[..., Child]) -> None:
    # Waiting for missing lenders takes 0.3 s; a blocked thread would count nothing in that time.
    script = """
import sys, threading, netram
store = netram.open(sys.argv[1] + "/bank.log", create=True, log_size="1MiB")
counted, stop = [0], threading.Event()
def count():
    while not stop.is_set():
        counted[0] += 1
threading.Thread(target=count).start()
try:
    store.wait_for_lenders(0.3)
except netram.LendersMissing:
    pass
stop.set()
print(counted[0], flush=True)
"""
    counting = child(script, directory)
    assert int(counting.hears()) > 1000
    assert counting.end() == 0


def test_closing_waits_for_calls_of_other_threads(directory: Path) -> None:
    for _ in range(5):
        store = netram.open(directory / "bank.log", create=True, log_size="1MiB")
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        started, outcomes = threading.Barrier(5), []

        def work(place: int) -> None:
            started.wait()
            try:
                while True:
                    with store.transaction("disk") as tx:
                        tx.write(region, place * 4096, b"x")
                    store.flush()
                    store.query()
            except netram.ClosedError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        while True:
            try:
                store.close()
                break
            except netram.BusyError:
                continue
        for thread in threads:
            thread.join()
        assert len(outcomes) == 4


def test_a_forked_child_is_refused_and_harms_nothing(
    store: netram.Store, region: netram.Region, directory: Path
) -> None:
    tx = store.transaction()
    tx.write(region, 0, b"parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # No exception may leave this block: the child would continue the parent's tests.
        try:
            said = []
            uses: list[Callable[[], object]] = [
                store.flush,
                store.truncate,
                store.query,
                store.statistics,
                store.transaction,
                store.close,
                lambda: store.segment(directory / "bank.data"),
                lambda: store.segment(directory / "childs", size=4096, create=True),
                lambda: region[0],
                lambda: memoryview(region),
                region.unmap,
                tx.commit,
                tx.abort,
                lambda: tx.write(region, 0, b"child!"),
                lambda: tx.set_range(region),
            ]
            for use in uses:
                try:
                    use()
                    said.append("accepted")
                except netram.ClosedError as error:
                    said.append("refused" if "forked child" in str(error) else str(error))
            for told in (store.closed, region.closed):
                said.append("refused" if told else "open")
            assert "netram" in repr(store) + repr(region) + repr(tx)
            del uses, use, tx, region
            with netram.open(directory / "own.log", create=True, log_size="64KiB") as own:
                own.flush()
            os.write(writer, ",".join(said).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        assert set(answers.read().split(",")) == {"refused"}
    assert os.waitpid(child, 0)[1] == 0
    assert not (directory / "childs").exists()
    tx.commit()
    assert region[:6] == b"parent"
    assert store.query().disk_error is None


def test_a_forked_child_that_exits_closes_nothing(store: netram.Store, region: netram.Region) -> None:
    # Children of multiprocessing end by os._exit; one that runs Python's exit handlers must also do no harm.
    child = os.fork()
    if child == 0:
        try:
            import atexit

            atexit._run_exitfuncs()
        finally:
            os._exit(7)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7
    with store.transaction() as tx:
        tx.write(region, 0, b"still here")
    assert tx.result is not None and tx.result.disk


def _open_own(path: str) -> int:
    with netram.open(path, create=True, log_size="64KiB") as store:
        return store.recovered.epoch


def test_children_may_open_logs_of_their_own(store: netram.Store, directory: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        assert pool.map(_open_own, [str(directory / f"{n}.log") for n in range(2)]) == [1, 1]
    with pytest.raises(netram.InUse):
        netram.open(directory / "bank.log")
