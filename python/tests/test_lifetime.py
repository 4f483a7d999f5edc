"""Objects that outlive their origin raise exceptions and never crash; memory lives as long as a view."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from conftest import SIZE, reopened

import netram


def mapped(path: Path) -> int:
    """Number of mappings of the file in this process."""
    return sum(line.rstrip("\n").endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def test_closing_with_views_is_refused_and_changes_nothing(store: netram.Store, region: netram.Region) -> None:
    view = memoryview(region)
    with pytest.raises(BufferError, match="1 view .* of its memory"):
        store.close()
    second = numpy.frombuffer(view, dtype=numpy.uint8)
    with pytest.raises(BufferError):
        region.unmap()
    with store.transaction() as tx:
        tx.set_range(second[:4])
        second[:4] = 9
    assert region[:4] == b"\x09" * 4
    assert not store.closed
    del view
    with pytest.raises(BufferError):
        store.close()
    del second
    store.close()


def test_closing_with_an_open_transaction_is_refused(store: netram.Store, region: netram.Region) -> None:
    tx = store.transaction()
    tx.write(region, 0, b"x")
    with pytest.raises(netram.BusyError, match="transactions are open"):
        store.close()
    assert not store.closed and not region.closed
    tx.commit()
    store.close()


def test_every_use_after_closing_is_refused(store: netram.Store, region: netram.Region, directory: Path) -> None:
    segment, ended = store.segment(directory / "bank.data"), store.transaction()
    ended.abort()
    store.close()
    store.close()
    assert store.closed and region.closed
    assert "closed" in repr(store) and "unmapped" in repr(region) and "netram" in repr(segment)
    uses: list[Callable[[], object]] = [
        store.flush,
        store.truncate,
        store.query,
        store.statistics,
        store.transaction,
        store.wait_for_lenders,
        lambda: store.forget(directory / "bank.data"),
        lambda: store.segment(directory / "bank.data"),
        lambda: store.segment(directory / "new", size=4096, create=True),
        segment.map,
        lambda: segment.size,
        lambda: region[0],
        lambda: region[0:4],
        lambda: region.path,
        lambda: region.offset,
        lambda: region.address,
        lambda: memoryview(region),
        lambda: numpy.frombuffer(region, dtype=numpy.uint8),
        lambda: ended.set_range(region),
        lambda: ended.commit(),
    ]
    for use in uses:
        with pytest.raises(netram.ClosedError):
            use()
    region.unmap()
    assert len(region) == SIZE, "what a region was stays known"
    assert not (directory / "new").exists()
    assert store.path.endswith("bank.log") and store.recovered.epoch == 1


def test_an_unmapped_region_is_refused(store: netram.Store, region: netram.Region) -> None:
    region.unmap()
    tx = store.transaction()
    for use in (
        lambda: region[0],
        lambda: memoryview(region),
        lambda: tx.set_range(region),
        lambda: tx.write(region, 0, b"x"),
    ):
        with pytest.raises(netram.ClosedError, match="unmapped"):
            use()
    tx.abort()


def test_an_array_keeps_store_and_memory_alive(directory: Path) -> None:
    def array() -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
        store = netram.open(directory / "bank.log", create=True, log_size="1MiB")
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        with store.transaction() as tx:
            tx.write(region, 0, (77).to_bytes(8, "little"))
        return numpy.frombuffer(region, dtype=numpy.int64)

    kept = array()
    gc.collect()
    assert kept[0] == 77 and kept[-1] == 0
    kept[-1] = 5
    assert mapped(directory / "bank.data") == 1
    with pytest.raises(netram.InUse):
        netram.open(directory / "bank.log")
    part = kept[:1]
    del kept
    assert part[0] == 77
    del part
    assert mapped(directory / "bank.data") == 0
    store, region = reopened(directory)
    assert region[:8] == (77).to_bytes(8, "little") and region[-8:] == bytes(8)
    store.close()


def test_a_dropped_region_is_unmapped_once_its_transaction_ends(store: netram.Store, directory: Path) -> None:
    region = store.segment(directory / "data", size=4096, create=True).map()
    tx = store.transaction()
    tx.write(region, 0, b"in the transaction")
    del region
    assert mapped(directory / "data") == 1
    tx.commit()
    assert mapped(directory / "data") == 0
    assert store.segment(directory / "data").map()[:6] == b"in the"


def test_a_stale_address_is_found_in_no_region(store: netram.Store, directory: Path) -> None:
    segment = store.segment(directory / "data", size=4096, create=True)
    for _ in range(50):
        region = segment.map()
        with store.transaction() as tx:
            view = memoryview(region)
            tx.set_range(view[8:16])
            view[8] += 1
            del view
        region.unmap()
    assert segment.map()[8] == 50
    assert mapped(directory / "data") == 0


def test_objects_cannot_be_instantiated_directly() -> None:
    for made in (netram.Store, netram.Segment, netram.Region, netram.Transaction, netram.Commit, netram.Query):
        with pytest.raises(TypeError):
            made()


def test_a_view_in_a_frame_of_an_exception_does_not_hide_it(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with netram.open(directory / "bank.log", create=True, log_size="1MiB") as store:
            region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
            view = memoryview(region)
            1 / 0
    assert not store.closed
    del view
    store.close()


def test_many_stores_leak_no_resources(directory: Path) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def once() -> None:
        store, region = reopened(directory)
        with store.transaction("lazy") as tx:
            tx.write(region, 0, b"x")

    with netram.open(directory / "bank.log", create=True, log_size="1MiB") as store:
        store.segment(directory / "bank.data", size=SIZE, create=True)
    once()
    before = threads(), descriptors(), mapped(directory / "bank.data")
    for _ in range(10):
        once()
    assert (threads(), descriptors(), mapped(directory / "bank.data")) == before
