"""Exceptions: one class for each reaction that a program may have.

Every message says what to do. Closing or unmapping memory that arrays still view raises BufferError, and a wrong
argument raises TypeError or ValueError, as elsewhere in Python.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "ClosedError",
    "CommitError",
    "Died",
    "Error",
    "Expired",
    "Gone",
    "HeapError",
    "InUse",
    "JoinError",
    "LendersMissing",
    "LockError",
    "LogError",
    "Lost",
    "NoHeap",
    "NoRoom",
    "NotHeld",
    "OpenError",
    "PageLost",
    "RangeError",
    "RecoveryRefused",
    "SaveError",
    "SegmentError",
    "Served",
    "Stray",
    "TimedOut",
    "Unknown",
]


class Error(Exception):
    """Base class of all exceptions in this package."""


class OpenError(Error):
    """A store could not be opened or created. Nothing was lost."""


class InUse(OpenError):
    """Another process, or another store of this one, has the log or the segment open. Close that first."""


class RecoveryRefused(OpenError):
    """Lenders that may hold committed data did not answer; the message names them.

    Restore one of them and open again. Only if they are permanently lost, open with accept_loss=True.
    """


class SegmentError(Error):
    """A segment is missing, already exists, has another size, or cannot be mapped as requested."""


class RangeError(Error, ValueError):
    """Bytes are outside a region or segment, or too many for a transaction. Nothing changed."""


class CommitError(Error):
    """A commit failed, or its outcome is unknown."""

    #: False: nothing was logged, and the transaction can be retried or aborted. True: the outcome is unknown; the
    #: next opening may find the commit, so never treat it as aborted.
    unknown: bool
    #: LSN of the record if the outcome is unknown.
    lsn: int | None

    def __init__(self, message: str, unknown: bool = False, lsn: int | None = None) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.lsn = lsn


class LogError(Error):
    """Flushing or truncating failed. The log keeps every record."""


class LendersMissing(Error, TimeoutError):
    """Too few lenders hold the log's newest bytes, so commits wait for the disk."""


class HeapError(Error):
    """The heap is damaged or has another version, or the offset is not a block of it."""


class NoHeap(HeapError):
    """The region contains no heap: make one. Never raised for a damaged or newer heap, which that would erase."""


class NoRoom(HeapError, MemoryError):
    """No free block is large enough. Free blocks, or use a larger heap."""


class PageLost(Error):
    """Every lender that had a page of far memory has lost it, so its content is gone."""


class BusyError(Error):
    """The object is in use: transactions are open, or another thread is using it."""


class ClosedError(Error, ValueError):
    """The store is closed, the region unmapped, the transaction ended, or the process forked after the opening."""


class JoinError(OpenError):
    """The node could not join a shared region. Nothing was lost."""


class Gone(Error):
    """The node has ended: it was fenced, fell behind, or lost its journal. Leave or abandon it, and join again."""


class Unknown(CommitError):
    """The outcome of a commit on shared memory is unknown: join again, and call Node.outcome(node, number)."""

    #: Id of the node that wrote the record.
    node: int
    #: Number of the record.
    number: int

    def __init__(self, message: str, node: int, number: int) -> None:
        super().__init__(message, unknown=True)
        self.node = node
        self.number = number


class Lost(CommitError):
    """The node has lost its locks, and the transaction was undone. Begin again."""


class Stray(CommitError):
    """A commit found stores without the lock, or undeclared ones. They were undone, and the transaction was aborted."""

    #: Offset in the region of the first such store, and its address in this process.
    offset: int
    address: int
    #: Length of the first store, in bytes.
    length: int
    #: Number of such stores.
    count: int
    #: The lock that covers its first byte; None if no lock does.
    lock: int | None
    #: Whether the transaction held that lock exclusively, so that only the declaration was missing.
    held: bool

    def __init__(
        self,
        message: str,
        offset: int = 0,
        address: int = 0,
        length: int = 0,
        count: int = 0,
        lock: int | None = None,
        held: bool = False,
    ) -> None:
        super().__init__(message)
        self.offset = offset
        self.address = address
        self.length = length
        self.count = count
        self.lock = lock
        self.held = held


class Served(Error):
    """A copy of a region cannot be saved while its server may exist: try again after the node's lease has expired."""


class SaveError(Error):
    """A copy of a region could not be written. Its files were removed."""


class LockError(Error):
    """The lock does not exist, is one too many, or is out of order in a transaction that cannot be undone."""

    #: The lock that the error concerns.
    lock: int | None

    def __init__(self, message: str, lock: int | None = None) -> None:
        super().__init__(message)
        self.lock = lock


class Died(LockError):
    """The lock is in use, and was acquired out of order: abort, and acquire it first."""


class TimedOut(LockError, TimeoutError):
    """The lock was not granted in time: another transaction holds it, or the server is unreachable."""


class NotHeld(LockError, ValueError):
    """The transaction does not hold the lock of some bytes, or not exclusively for writing. Nothing changed."""


class Expired(Error):
    """Too many commits were held back for a reader, so its pinned state was given up. Its accept() continues."""
