"""Regions: mapping, reading, the buffer protocol, unmapping."""

from __future__ import annotations

import ctypes
import io
from pathlib import Path

import pytest
from conftest import SIZE, reopened

import netram


def test_a_region_reads_like_bytes(store: netram.Store, region: netram.Region, directory: Path) -> None:
    with store.transaction() as tx:
        tx.write(region, 0, b"hello")
    assert len(region) == SIZE
    assert region[0] == ord("h")
    assert region[-SIZE] == ord("h")
    assert region[0:5] == b"hello"
    assert region[1:-1][:4] == b"ello"
    assert region[SIZE:] == b"" == region[3:1]
    assert region[SIZE - 2 : SIZE + 100] == b"\0\0"
    for outside in (SIZE, -SIZE - 1, 2**80, -(2**80)):
        with pytest.raises(IndexError):
            region[outside]
    with pytest.raises(IndexError, match="memoryview"):
        region[::2]
    with pytest.raises(TypeError):
        region["one"]  # type: ignore[call-overload]
    assert (region.path, region.offset) == (str(directory / "bank.data"), 0)
    with pytest.raises(TypeError):
        region[0] = 1  # type: ignore[index]


def test_a_view_is_the_memory_itself(region: netram.Region) -> None:
    view = memoryview(region)
    assert (view.nbytes, view.format, view.itemsize, view.readonly, view.contiguous) == (SIZE, "B", 1, False, True)
    view[7] = 42
    assert region[7] == 42
    assert ctypes.addressof(ctypes.c_char.from_buffer(view)) == region.address
    assert io.BytesIO(region).read(8)[7] == 42
    with pytest.raises(BufferError):
        region.unmap()
    # The ctypes object above also holds the view, which ends with the last reference.
    del view
    region.unmap()


def test_parts_of_a_segment_can_be_mapped_separately(store: netram.Store, directory: Path) -> None:
    segment = store.segment(directory / "data", size=3 * 4096 + 100, create=True)
    first, last = segment.map(0, 4096), segment.map(offset=3 * 4096)
    assert (len(first), len(last), last.offset) == (4096, 100, 3 * 4096)
    with store.transaction() as tx:
        tx.write(last, 90, b"0123456789")
    with pytest.raises(netram.SegmentError, match="overlap"):
        segment.map(0)
    last.unmap()
    first.unmap()
    # Committed but not yet in the file: a new mapping shows it all the same.
    assert segment.map()[-10:] == b"0123456789"


@pytest.mark.parametrize(
    ("offset", "length"), [(1, 0), (8192, 0), (0, 4097), (4096, 1), (-4096, 0), (0, -1), (2**62, 0), (0, 2**70)]
)
def test_an_invalid_mapping_is_refused(
    store: netram.Store, directory: Path, offset: int, length: int
) -> None:
    segment = store.segment(directory / "data", size=4096, create=True)
    with pytest.raises(netram.RangeError):
        segment.map(offset, length)
    segment.map()


def test_unmapping_discards_uncommitted_bytes(store: netram.Store, region: netram.Region, directory: Path) -> None:
    with region:
        with store.transaction() as tx:
            tx.write(region, 0, b"kept")
        memoryview(region)[4:8] = b"lost"
    assert region.closed
    region.unmap()
    assert store.segment(directory / "bank.data").map()[:8] == b"kept\0\0\0\0"


def test_a_region_in_a_transaction_stays_mapped(store: netram.Store, region: netram.Region) -> None:
    tx = store.transaction()
    tx.write(region, 0, b"x")
    with pytest.raises(netram.BusyError, match="1 open transaction"):
        region.unmap()
    assert not region.closed
    tx.abort()
    region.unmap()


def test_an_exception_leaves_a_region_in_use_mapped(region: netram.Region) -> None:
    with pytest.raises(ZeroDivisionError), region:
        view = memoryview(region)
        1 / 0
    assert not region.closed
    del view


def test_a_large_segment_costs_nothing_until_it_is_touched(store: netram.Store, directory: Path) -> None:
    def resident_kib() -> int:
        [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1])

    size = 8 << 30
    segment = store.segment(directory / "large", size=size, create=True, sparse=True)
    before = resident_kib()
    region = segment.map()
    assert len(region) == size
    with store.transaction("disk") as tx:
        tx.write(region, 5 << 30, b"beyond 4 GiB")
    assert region[5 << 30 : (5 << 30) + 12] == b"beyond 4 GiB"
    assert resident_kib() - before < 64 * 1024
    store.truncate()
    region.unmap()
    with (directory / "large").open("rb") as file:
        file.seek(5 << 30)
        assert file.read(12) == b"beyond 4 GiB"


def test_arrays_of_ctypes_are_declared(directory: Path) -> None:
    # Such an array exports a shape but no strides.
    store = netram.open(directory / "bank.log", create=True, log_size="1MiB")
    region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
    row = (ctypes.c_int64 * 8).from_buffer(region, 64)
    table = ((ctypes.c_int32 * 4) * 3).from_buffer(region, 4096)
    single = ctypes.c_int64.from_buffer(region, 8192)
    none = (ctypes.c_int64 * 0).from_buffer(region)
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        tx.set_range(row)
        region_bytes = memoryview(region)
        region_bytes[56:136] = b"\xff" * 80
        1 / 0
    # An abort restores exactly the declared bytes.
    assert region[56:136] == b"\xff" * 8 + bytes(64) + b"\xff" * 8
    with store.transaction() as tx:
        for array in (row, table, single, none):
            tx.set_range(array)
        assert tx.ranges == 3
        row[7], table[2][3], single.value = 7, 23, 42
    del row, table, single, none, array, region_bytes
    store.close()
    store, region = reopened(directory)
    assert region[120:128] == (7).to_bytes(8, "little")
    assert region[4096 + 44 : 4096 + 48] == (23).to_bytes(4, "little")
    assert region[8192:8200] == (42).to_bytes(8, "little")
    store.close()
