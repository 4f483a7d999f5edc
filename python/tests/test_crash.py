"""SIGKILL at any time, and recovery from a real lender."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Child, Lender, reopened

import netram

# Transfers between two accounts forever, and prints the number of acknowledged transfers. Each also changes a counter.
TELLER = """
import sys, netram, numpy
directory, lenders = sys.argv[1], sys.argv[2:]
settings = dict(lenders=lenders, insecure=True, one_domain=True)
store = netram.open(directory + "/bank.log", create=True, log_size="4MiB", **settings)
accounts = numpy.frombuffer(store.segment(directory + "/bank.data", size=65536, create=True).map(), dtype="i8")
store.wait_for_lenders()
while True:
    n = int(accounts[0]) + 1
    with store.transaction() as tx:
        tx.set_range(accounts[:3])
        accounts[0] = n
        accounts[1] -= 1
        accounts[2] += 1
    print(n, flush=True)
"""


def settings(*lenders: Lender) -> dict[str, Any]:
    return {"lenders": [lender.address for lender in lenders], "insecure": True, "one_domain": True}


def killed_after(teller: Child, commits: int) -> int:
    """Kills the running teller; returns the last transfer that it reported as acknowledged, read or not."""
    for _ in range(commits):
        last = int(teller.hears())
    # The teller goes on until the signal arrives, and its last line may be cut off.
    whole = [line for line in teller.killed().splitlines(keepends=True) if line.endswith("\n")]
    return int(whole[-1]) if whole else last


def test_a_kill_loses_no_acknowledged_commit(
    directory: Path, child: Callable[..., Child], lender: Callable[..., Lender]
) -> None:
    lenders = lender(), lender()
    done = 0
    for commits in (1, 50, 400):
        acknowledged = killed_after(child(TELLER, directory, *(one.address for one in lenders)), commits)
        assert acknowledged > done
        store, region = reopened(directory, **settings(*lenders))
        view = memoryview(region).cast("q")
        done = view[0]
        assert done >= acknowledged
        assert (view[1], view[2]) == (-done, done), "whole or not at all"
        del view
        assert {answer for _, answer in store.recovered.lenders} <= {"complete"}
        store.close()


def test_the_newest_commits_come_from_the_lender(
    directory: Path, child: Callable[..., Child], lender: Callable[..., Lender]
) -> None:
    # The process kills itself right after the commit. The record is written to the disk at least a millisecond later,
    # unless the system suspends the process until then. So the test retries.
    script = TELLER.replace("print(n, flush=True)", "os.kill(os.getpid(), 9)").replace("import sys", "import os, sys")
    one = lender()
    for transfers in range(1, 51):
        assert child(script, directory, one.address).end() == -9
        store, region = reopened(directory, **settings(one))
        assert int.from_bytes(region[:8], "little") == transfers
        taken = store.recovered.records_from_lenders
        store.close()
        if taken:
            assert store.recovered.bytes_from_lenders > 0
            return
    raise AssertionError("the lender was never needed")


def test_a_lender_that_restarts_keeps_the_window(
    directory: Path, child: Callable[..., Child], lender: Callable[..., Lender]
) -> None:
    one = lender()
    acknowledged = killed_after(child(TELLER, directory, one.address), 20)
    one.kill()
    one.restart()
    store, region = reopened(directory, **settings(one))
    assert memoryview(region).cast("q")[0] >= acknowledged
    assert store.recovered.lenders == [(one.address, "complete")]
    store.close()


def test_recovery_without_needed_lenders_is_refused_and_names_them(
    directory: Path, child: Callable[..., Child], lender: Callable[..., Lender]
) -> None:
    one = lender()
    acknowledged = killed_after(child(TELLER, directory, one.address), 20)
    one.stop()
    one.restart()
    with pytest.raises(netram.RecoveryRefused, match=f"{one.address} .restarted without its memory"):
        netram.open(directory / "bank.log", **settings(one))
    store = netram.open(directory / "bank.log", accept_loss=True, **settings(one))
    assert store.recovered.loss_accepted is not None
    assert one.address in store.recovered.loss_accepted
    assert store.recovered.lenders == [(one.address, "amnesiac")]
    count = memoryview(store.segment(directory / "bank.data").map()).cast("q")
    assert count[0] <= acknowledged + 1
    assert (count[1], count[2]) == (-count[0], count[0]), "what is there is whole"
    del count
    store.close()


def test_waiting_for_a_missing_lender_can_be_interrupted(
    directory: Path, child: Callable[..., Child], lender: Callable[..., Lender]
) -> None:
    one = lender()
    killed_after(child(TELLER, directory, one.address), 20)
    one.kill()
    script = """
import os, signal, sys, threading, netram
# A background job may inherit it as ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    netram.open(sys.argv[1] + "/bank.log", lenders=sys.argv[2:], insecure=True, one_domain=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""
    waiting = child(script, directory, one.address)
    assert waiting.hears() == "interrupted"
    assert waiting.end() == 0
    one.restart()
    store, region = reopened(directory, **settings(one))
    assert memoryview(region).cast("q")[0] >= 20
    store.close()


def test_a_writer_replaced_by_a_newer_one_gets_an_error(directory: Path, lender: Callable[..., Lender]) -> None:
    one = lender()
    store = netram.open(directory / "bank.log", create=True, log_size="1MiB", **settings(one))
    region = store.segment(directory / "bank.data", size=4096, create=True).map()
    store.wait_for_lenders()
    with store.transaction() as tx:
        tx.write(region, 0, b"before")
    # Otherwise the disk follows while the files are copied, and the copy is of no moment.
    store.flush()
    # A copy of the log, opened with the same lenders over its own segment, is the newer writer.
    shutil.copytree(directory, directory.parent / "copy")
    netram.open(directory.parent / "copy" / "bank.log", adopt_segments=True, **settings(one)).close()
    number = 0
    with pytest.raises(netram.CommitError, match="fenced") as told:
        # Until it notices, its own disk may still accept commits.
        while True:
            number += 1
            tx = store.transaction()
            tx.write(region, 0, number.to_bytes(8, "little"))
            tx.commit()
    assert told.value.unknown == (told.value.lsn is not None) == (not tx.open)
    if tx.open:
        tx.abort()
        assert region[0:8] != number.to_bytes(8, "little")
    else:
        assert region[0:8] == number.to_bytes(8, "little"), "the outcome is unknown, so memory keeps the new values"
    try:
        store.close()
    except netram.LogError as error:
        # Whether a record was still unwritten depends on a millisecond.
        assert "fenced" in str(error)
    assert store.closed and region.closed


def test_lazy_commits_before_a_flush_survive_it(directory: Path, child: Callable[..., Child]) -> None:
    script = """
import sys, netram
store = netram.open(sys.argv[1] + "/bank.log", create=True, log_size="1MiB", spool="256KiB")
region = store.segment(sys.argv[1] + "/bank.data", size=65536, create=True).map()
for n in range(1, 101):
    with store.transaction("lazy") as tx:
        tx.write(region, 0, bytes([n]) * 64)
    if n == 50:
        store.flush()
print("done", flush=True)
sys.stdin.read()
"""
    teller = child(script, directory)
    assert teller.hears() == "done"
    teller.kill()
    store, region = reopened(directory)
    assert region[0] >= 50
    assert region[:64] == bytes([region[0]]) * 64, "whole or not at all"
    store.close()
