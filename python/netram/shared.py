"""Shared regions: one memory in several processes, on one machine or many, changed in transactions under locks.

    import netram.shared
    import numpy

    with netram.shared.join("tcp://plan:7440", "node-1", key_file="cluster.key") as node:
        with node.begin() as txn:               # commits at the end; an exception aborts
            txn.acquire(7)                      # exclusively; hold="shared" to read
            seats = txn.array(7 * 65536, 100)   # 100 int64 under lock 7, declared and writable
            seats[3] -= 1

A commit is safe when lenders have it, and it updates the other processes' memory. docs/design/shared.md describes the
design and the failures it survives, docs/guide/shared-memory.md the calls.
"""

from __future__ import annotations

from ._netram import (
    Node,
    NodeCommit,
    NodeHeap,
    NodeMemory,
    NodeProgress,
    NodeStraight,
    NodeTransaction,
    Reader,
    join,
)
from .errors import (
    Died,
    Expired,
    Gone,
    JoinError,
    LockError,
    Lost,
    NotHeld,
    SaveError,
    Served,
    Stray,
    TimedOut,
    Unknown,
)

__all__ = [
    "Died",
    "Expired",
    "Gone",
    "JoinError",
    "LockError",
    "Lost",
    "Node",
    "NodeCommit",
    "NodeHeap",
    "NodeMemory",
    "NodeProgress",
    "NodeStraight",
    "NodeTransaction",
    "NotHeld",
    "Reader",
    "SaveError",
    "Served",
    "Stray",
    "TimedOut",
    "Unknown",
    "join",
]
