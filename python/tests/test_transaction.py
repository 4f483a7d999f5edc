"""Transactions: ranges, commit, abort, and errors."""

from __future__ import annotations

import array
import threading
from pathlib import Path

import pytest
from conftest import SIZE, reopened

import netram


def test_a_commit_survives_and_reports_its_copies(directory: Path) -> None:
    with netram.open(directory / "bank.log", create=True, log_size="1MiB") as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        tx = store.transaction("disk")
        assert (tx.open, tx.result, tx.ranges, tx.durability, tx.restore) == (True, None, 0, "disk", True)
        tx.write(region, 3, b"abc")
        assert tx.ranges == 1
        commit = tx.commit()
        assert (commit.disk, commit.lenders, commit.rule, commit.lsn) == (True, 0, False, 0)
        assert (tx.open, tx.result, tx.ranges) == (False, commit, 0)
        assert commit != store.transaction().commit()
    store, region = reopened(directory)
    assert region[:7] == b"\0\0\0abc\0"
    store.close()


def test_a_context_commits_at_its_end_and_aborts_on_an_exception(store: netram.Store, region: netram.Region) -> None:
    with store.transaction() as tx:
        tx.write(region, 0, b"old!")
    assert tx.result is not None
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        tx.write(region, 0, b"new!")
        assert region[:4] == b"new!"
        1 / 0
    assert region[:4] == b"old!"
    assert tx.result is None and not tx.open
    with store.transaction() as tx:
        tx.write(region, 0, b"1")
        tx.commit("disk")
    with store.transaction() as tx:
        tx.write(region, 0, b"2")
        tx.abort()
    assert region[:4] == b"1ld!"
    assert store.statistics().aborts == 2


def test_a_dropped_transaction_is_aborted(store: netram.Store, region: netram.Region) -> None:
    tx = store.transaction()
    tx.write(region, 0, b"gone")
    del tx
    assert region[:4] == bytes(4)
    assert store.query().open_transactions == 0


def test_an_abort_restores_overlapping_ranges(store: netram.Store, region: netram.Region) -> None:
    view = memoryview(region)
    view[:10] = b"0123456789"
    tx = store.transaction()
    tx.set_range(region, 2, 4)
    view[2:6] = b"aaaa"
    tx.set_range(view[4:8])
    view[4:8] = b"bbbb"
    tx.write(region, 0, b"cccccccccc")
    tx.abort()
    assert region[:10] == b"0123456789"
    del view


def test_without_restore_an_abort_leaves_memory(store: netram.Store, region: netram.Region) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction(restore=False) as tx:
        assert not tx.restore
        tx.write(region, 0, b"stays")
        1 / 0
    assert region[:5] == b"stays"


def test_only_declared_bytes_are_logged(store: netram.Store, region: netram.Region, directory: Path) -> None:
    view = memoryview(region)
    with store.transaction() as tx:
        tx.set_range(view[10:12])
        view[10:14] = b"abcd"
    del view
    store.close()
    store, region = reopened(directory)
    assert region[10:14] == b"ab\0\0"
    store.close()


@pytest.mark.parametrize(
    ("part", "ranges"),
    [((), [0, SIZE]), ((8,), [8, SIZE]), ((8, 4), [8, 12]), ((SIZE, 0), None), ((None, 16), [0, 16])],
)
def test_ranges_of_a_region(directory: Path, part: tuple[int, ...], ranges: list[int] | None) -> None:
    with netram.open(directory / "bank.log", create=True, log_size="16MiB") as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        with store.transaction(restore=False) as tx:
            tx.set_range(region, *part)
            assert tx.ranges == (1 if ranges else 0)
        logged = store.statistics().bytes_logged
        assert (logged > ranges[1] - ranges[0]) if ranges else (logged == 0)


@pytest.mark.parametrize("part", [(0, SIZE + 1), (SIZE + 1, 0), (SIZE, 1), (-1, 1), (0, -1), (2**63, 1), (1, 2**64)])
def test_a_range_outside_is_refused_and_the_transaction_stays_open(
    store: netram.Store, region: netram.Region, part: tuple[int, int]
) -> None:
    with store.transaction() as tx:
        with pytest.raises(netram.RangeError):
            tx.set_range(region, *part)
        for offset in (-1, SIZE, SIZE - 2, 2**64):
            with pytest.raises(netram.RangeError):
                tx.write(region, offset, b"abc")
        tx.write(region, 0, b"fine")
    assert region[:4] == b"fine"


def test_buffers_elsewhere_are_refused(store: netram.Store, region: netram.Region, directory: Path) -> None:
    with netram.open(directory / "other.log", create=True, log_size="1MiB") as other, store.transaction() as tx:
        foreign = other.segment(directory / "other", size=4096, create=True).map()
        for elsewhere in (bytearray(8), b"bytes", array.array("d", [1.0]), memoryview(foreign)):
            with pytest.raises(netram.RangeError, match="not in a region that this store"):
                tx.set_range(elsewhere)
        del elsewhere
        with pytest.raises(netram.RangeError, match="another log"):
            tx.set_range(foreign, 0, 8)
        with pytest.raises(netram.RangeError, match="another log"):
            tx.write(foreign, 0, b"x")
        with pytest.raises(TypeError, match="Region, or a buffer"):
            tx.set_range(17)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="slice itself"):
            tx.set_range(memoryview(region), 0, 8)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            tx.write(region, 0, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            tx.write(memoryview(region), 0, b"x")  # type: ignore[arg-type]
        tx.set_range(memoryview(region)[:0])
        tx.set_range(b"")
        assert tx.ranges == 0


def test_writes_take_any_buffer(store: netram.Store, region: netram.Region) -> None:
    with store.transaction() as tx:
        tx.write(region, 0, array.array("H", [1, 2]))
        tx.write(region, 8, bytearray(b"abcdef"))
        tx.write(region, 16, memoryview(b"abcdef")[::2])
        tx.write(region, 24, b"")
        # From the region itself, with an overlap.
        tx.write(region, 9, memoryview(region)[8:14])
    assert region[:4] == b"\1\0\2\0"
    assert region[8:15] == b"aabcdef"
    assert region[16:20] == b"ace\0"


def test_a_transaction_too_large_stays_open_to_be_aborted(directory: Path) -> None:
    with netram.open(directory / "bank.log", create=True, log_size="64KiB") as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        most = store.query().transaction_bytes_max
        tx = store.transaction()
        with pytest.raises(netram.RangeError, match="can never be committed"):
            tx.set_range(region)
        for offset in range(0, SIZE, 32768):
            tx.write(region, offset, b"x" * 16384)
        with pytest.raises(netram.CommitError, match=str(most)) as refused:
            tx.commit()
        assert (refused.value.unknown, refused.value.lsn) == (False, None)
        assert tx.open and region[0] == ord("x")
        tx.abort()
        assert region[0] == 0
        # At the end of a context it is aborted instead.
        with pytest.raises(netram.CommitError), store.transaction() as tx:
            for offset in range(0, SIZE, 32768):
                tx.write(region, offset, b"x" * 16384)
        assert not tx.open and region[0] == 0
        with store.transaction() as tx:
            tx.write(region, 0, b"small")


def test_an_ended_transaction_is_refused(store: netram.Store, region: netram.Region) -> None:
    committed, aborted = store.transaction(), store.transaction()
    committed.commit()
    aborted.abort()
    for tx in (committed, aborted):
        for use in (
            tx.commit,
            tx.abort,
            lambda tx=tx: tx.set_range(region, 0, 1),
            lambda tx=tx: tx.set_range(memoryview(region)),
            lambda tx=tx: tx.set_range(b""),
            lambda tx=tx: tx.write(region, 0, b"x"),
        ):
            with pytest.raises(netram.ClosedError, match="has ended"):
                use()
    assert region[0] == 0
    with pytest.raises(ValueError, match="durability"):
        store.transaction("never")  # type: ignore[arg-type]
    tx = store.transaction()
    with pytest.raises(ValueError, match="durability"):
        tx.commit("never")  # type: ignore[arg-type]
    tx.abort()


def test_a_transaction_over_several_segments_is_atomic(store: netram.Store, directory: Path) -> None:
    regions = [store.segment(directory / f"{n}", size=4096, create=True).map() for n in range(5)]
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        for region in regions:
            tx.write(region, 0, b"no")
        1 / 0
    assert all(region[:2] == b"\0\0" for region in regions)
    with store.transaction() as tx:
        for region in regions:
            tx.write(region, 0, b"ok")
    assert all(region[:2] == b"ok" for region in regions)


def test_lazy_commits_are_spooled_and_merged(directory: Path) -> None:
    with netram.open(directory / "bank.log", create=True, log_size="1MiB", spool="64KiB") as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        for value in range(100):
            with store.transaction("lazy") as tx:
                tx.write(region, 0, bytes([value]) * 100)
        store.flush()
        assert store.query().tail < 100 * 100
        assert store.statistics().commits_merged > 0
    store, region = reopened(directory)
    assert region[:100] == bytes([99]) * 100
    store.close()


def test_a_full_log_makes_room_by_itself(directory: Path) -> None:
    with netram.open(directory / "bank.log", create=True, log_size="64KiB", truncation_threshold=20) as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        for value in range(200):
            with store.transaction("lazy") as tx:
                tx.write(region, 4096 * (value % 50), bytes([value]) * 4096)
        assert store.statistics().rounds > 0
    store, region = reopened(directory)
    assert [region[4096 * n] for n in range(50)] == list(range(150, 200))
    store.close()


def test_threads_take_turns_in_a_transaction(store: netram.Store, region: netram.Region) -> None:
    tx = store.transaction()
    thread = threading.Thread(target=lambda: tx.write(region, 0, b"thread"))
    thread.start()
    thread.join()
    tx.write(region, 6, b"!")
    thread = threading.Thread(target=tx.commit)
    thread.start()
    thread.join()
    assert tx.result is not None
    assert region[:7] == b"thread!"
