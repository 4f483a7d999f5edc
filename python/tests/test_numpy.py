"""NumPy arrays over regions: the memory itself, never a copy."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from conftest import SIZE, reopened

import netram


def test_an_array_is_the_regions_memory(store: netram.Store, region: netram.Region) -> None:
    balances = numpy.frombuffer(region, dtype=numpy.int64)
    assert balances.ctypes.data == region.address
    assert balances.flags.writeable and not balances.flags.owndata
    with store.transaction() as tx:
        tx.set_range(balances[3:5])
        balances[3:5] = 7, 8
    assert region[24:40] == (7).to_bytes(8, "little") + (8).to_bytes(8, "little")
    copy = numpy.array(balances)
    assert copy.ctypes.data != region.address


def test_changes_through_an_array_survive(directory: Path) -> None:
    store = netram.open(directory / "bank.log", create=True, log_size="1MiB")
    region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
    table = numpy.frombuffer(region, dtype=[("id", "u4"), ("balance", "f8")], count=1000, offset=16)
    with store.transaction() as tx:
        tx.set_range(table[10:20])
        table["balance"][10:20] = numpy.arange(10)
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        tx.set_range(table)
        table["balance"] += 1
        1 / 0
    assert table["balance"][:20].sum() == 45
    with pytest.raises(BufferError):
        store.close()
    del table
    store.close()
    store, region = reopened(directory)
    table = numpy.frombuffer(region, dtype=[("id", "u4"), ("balance", "f8")], count=1000, offset=16)
    assert table["balance"].sum() == 45
    del table
    store.close()


@pytest.mark.parametrize(
    ("part", "first", "last"),
    [
        (numpy.s_[0], 0, 1600),
        (numpy.s_[:, 0], 0, 9 * 1600 + 8),
        (numpy.s_[::2, ::3], 0, 8 * 1600 + 198 * 8 + 8),
        (numpy.s_[::-1], 0, 10 * 1600),
        (numpy.s_[5:2:-1, 10:5:-2], 3 * 1600 + 6 * 8, 5 * 1600 + 11 * 8),
        (numpy.s_[2:2], 0, 0),
        (numpy.s_[3, 4:5], 3 * 1600 + 32, 3 * 1600 + 40),
    ],
)
def test_a_strided_array_declares_its_hull(
    directory: Path, part: tuple[slice, ...], first: int, last: int
) -> None:
    with netram.open(directory / "bank.log", create=True, log_size="1MiB") as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        matrix = numpy.frombuffer(region, dtype=numpy.float64, count=2000).reshape(10, 200)
        with pytest.raises(ZeroDivisionError), store.transaction() as tx:
            tx.set_range(matrix[part])
            matrix[...] = -1.0
            1 / 0
        # An abort restores exactly the declared bytes.
        restored = [place for place in range(0, 16000, 8) if region[place : place + 8] == bytes(8)]
        assert restored == list(range(first, last, 8))
        del matrix


def test_a_transposed_and_a_scalar_view_are_found(store: netram.Store, region: netram.Region) -> None:
    cube = numpy.frombuffer(region, dtype=numpy.int32, count=24).reshape(2, 3, 4)
    with store.transaction() as tx:
        tx.set_range(cube.T)
        assert tx.ranges == 1
        tx.set_range(cube[1, 2, 3, ...])
        cube += 1
    assert region[95] == 0 and region[92] == 1


def test_arrays_of_dates_are_declared_as_bytes(store: netram.Store, region: netram.Region) -> None:
    days = numpy.frombuffer(region, dtype="datetime64[D]", count=8)
    with store.transaction() as tx:
        with pytest.raises(TypeError, match="buffer"):
            tx.set_range(days)
        tx.set_range(days.view(numpy.uint8))
        days[:] = numpy.datetime64("2026-11-21")
    assert region[:8] == days.tobytes()[:8]


def test_writes_take_arrays(store: netram.Store, region: netram.Region) -> None:
    with store.transaction() as tx:
        tx.write(region, 8, numpy.arange(4, dtype=numpy.int16)[::-1])
    assert region[8:16] == b"\3\0\2\0\1\0\0\0"
