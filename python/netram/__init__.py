"""Recoverable memory: map a file, change it in place, commit. After a crash it has the committed content.

    import netram
    import numpy

    store = netram.open("bank.log", create=True, lenders=["tcp://10.0.0.2:7420"], key_file="cluster.key")
    region = store.segment("bank.data", size=1 << 20, create=True).map()
    balances = numpy.frombuffer(region, dtype=numpy.int64)  # the memory itself, no copy

    with store.transaction() as tx:
        tx.set_range(balances[7:9])
        balances[7] -= 100
        balances[8] += 100

A commit waits for the memory of other machines (lenders) instead of the disk: about one network round trip.
docs/guide/python.md describes the package.
"""

from __future__ import annotations

import atexit as _atexit
import os as _os

from . import _netram
from ._netram import (
    Commit,
    Heap,
    HeapStatistics,
    Lender,
    Query,
    Recovered,
    Region,
    RegionInfo,
    Segment,
    Statistics,
    Store,
    Transaction,
    create,
    open,
)
from .errors import (
    BusyError,
    ClosedError,
    CommitError,
    Error,
    HeapError,
    InUse,
    LendersMissing,
    LogError,
    NoHeap,
    NoRoom,
    OpenError,
    PageLost,
    RangeError,
    RecoveryRefused,
    SegmentError,
)

__all__ = [
    "BusyError",
    "ClosedError",
    "Commit",
    "CommitError",
    "Error",
    "Heap",
    "HeapError",
    "HeapStatistics",
    "InUse",
    "Lender",
    "LendersMissing",
    "LogError",
    "NoHeap",
    "NoRoom",
    "OpenError",
    "PageLost",
    "Query",
    "RangeError",
    "Recovered",
    "RecoveryRefused",
    "Region",
    "RegionInfo",
    "Segment",
    "SegmentError",
    "Statistics",
    "Store",
    "Transaction",
    "create",
    "open",
]

__version__: str = _netram.__version__

# A child of fork has no threads and shares files and sockets with its parent, so inherited objects are refused.
_os.register_at_fork(after_in_child=_netram._inherited)
# Stores left open are written to the disk at exit, so that the next opening need not ask lenders.
_atexit.register(_netram._close_all)
