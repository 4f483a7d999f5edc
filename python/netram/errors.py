"""What can go wrong: one class for each thing that a program may want to do about it.

Every message says what to do. Beside these, closing or unmapping what arrays still look into raises BufferError, and
a wrong argument TypeError or ValueError, as everywhere in Python.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "ClosedError",
    "CommitError",
    "Error",
    "HeapError",
    "InUse",
    "LendersMissing",
    "LogError",
    "NoRoom",
    "OpenError",
    "RangeError",
    "RecoveryRefused",
    "SegmentError",
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
    """There is no heap in the region, it is damaged, or the offset is no block of it."""


class NoRoom(HeapError, MemoryError):
    """No free block is large enough. Free some, or use a larger heap."""


class BusyError(Error):
    """Not now: transactions are open, or another thread is using this one."""


class ClosedError(Error, ValueError):
    """The store is closed, the region unmapped, the transaction ended, or the process a fork of the one that opened."""
