"""What can go wrong: one class for each thing that a program may want to do about it.

Every message says what to do. Beside these, closing or unmapping what arrays still look into raises BufferError, and
a wrong argument TypeError or ValueError, as everywhere in Python.
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
    """The base of every exception here."""


class OpenError(Error):
    """A store was not opened or created. Nothing was lost by trying."""


class InUse(OpenError):
    """Another process, or another store of this one, has the log or the segment. Close that first."""


class RecoveryRefused(OpenError):
    """Lenders that may hold committed data did not answer; the message names them.

    Bring one back and open again. Only if they are gone for good, open with accept_loss=True.
    """


class SegmentError(Error):
    """A segment is missing, exists already, has another size, or cannot be mapped as asked."""


class RangeError(Error, ValueError):
    """Bytes outside a region or a segment, or more than a transaction can carry. Nothing changed."""


class CommitError(Error):
    """A commit did not come about, or nobody knows whether it did."""

    #: False: nothing was logged; the transaction can be retried or aborted. True: it was logged and may be found at
    #: the next opening; never take it for aborted.
    unknown: bool
    #: Where the log has it, when the outcome is unknown.
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
    """The heap is damaged or of another version, there is none, or the offset is no block of it."""


class NoHeap(HeapError):
    """There is no heap at all: make one. Nothing else is told so, for that would void every block."""


class NoRoom(HeapError, MemoryError):
    """No free block is large enough. Free some, or use a larger heap."""


class PageLost(Error):
    """Every lender that had a page of far memory has lost it, and with it what was there."""


class BusyError(Error):
    """Not now: transactions are open, or another thread is using this one."""


class ClosedError(Error, ValueError):
    """The store is closed, the region unmapped, the transaction ended, or the process a fork of the one that opened."""


class JoinError(OpenError):
    """No node joined a shared region. Nothing was lost by trying."""


class Gone(Error):
    """There is no node any more: it was fenced, fell behind, or lost its journal. Leave or abandon it, and join again."""


class Unknown(CommitError):
    """A commit on shared memory is neither done nor undone: join again, and ask Node.outcome(node, number)."""

    #: Whose record it is.
    node: int
    #: Which of its records.
    number: int

    def __init__(self, message: str, node: int, number: int) -> None:
        super().__init__(message, unknown=True)
        self.node = node
        self.number = number


class Lost(CommitError):
    """The node has lost its locks: what the transaction did is undone. Begin again."""


class Stray(CommitError):
    """A commit found stores that the transaction may not make: without the lock, or not declared. Put back, and aborted."""

    #: Where in the region the first of them begins, and in this process.
    offset: int
    address: int
    #: Its bytes.
    length: int
    #: How many there are.
    count: int
    #: The lock that covers its first byte; None: no lock does.
    lock: int | None
    #: Whether the transaction had that lock exclusively: the bytes were not declared.
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
    """No copy of a region is saved while its server may live: try again when the node's lease is over."""


class SaveError(Error):
    """A copy of a region could not be written. Nothing is left of it."""


class LockError(Error):
    """There is no such lock, too many are wanted, or a transaction that cannot be undone wants one out of order."""

    #: The lock that it is about.
    lock: int | None

    def __init__(self, message: str, lock: int | None = None) -> None:
        super().__init__(message)
        self.lock = lock


class Died(LockError):
    """The lock is in use, and was acquired out of order: abort, and begin with it."""


class TimedOut(LockError, TimeoutError):
    """The lock did not come in time: somebody holds it for long, or the server is away."""


class NotHeld(LockError, ValueError):
    """Bytes under no lock that this transaction holds as it must: exclusively, to write. Nothing changed."""


class Expired(Error):
    """Too much was held back for a reader: what it saw is past. Its accept() goes on."""
