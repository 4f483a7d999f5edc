"""Far memory: arrays larger than local memory. Pages that do not fit are at two lenders each, encrypted.

    import netram.far

    lenders = ["tcp://10.0.0.2:7420", "tcp://10.0.0.3:7420"]
    arena = netram.far.open("16GiB", "2GiB", lenders=lenders, key_file="cluster.key")
    matrix = arena.empty((30_000, 30_000), "float64")   # zeros, without memory until they are written
    matrix[:, 7] += 1

The arrays are ordinary NumPy arrays. Access to a remote page fetches it from a lender, and another page leaves. Far
memory is not storage: its content ends with the process. docs/design/far.md describes the design and the failures it
survives, docs/guide/far-memory.md the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from . import _netram
from ._netram import ArenaStatus, FarMemory
from .errors import ClosedError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["Arena", "ArenaStatus", "FarMemory", "empty", "gather", "open", "scatter"]

_default: Arena | None = None


class Arena:
    """A range of addresses, part of which has local memory. It ends when it and the last of its arrays are gone."""

    def __init__(self, inner: _netram.Arena) -> None:
        self._inner = inner

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
        """An array of zeros with this shape. Raises NoRoom if not enough adjacent addresses are free."""
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"far memory can hold numbers, but no Python objects: {kind}")
        if order not in ("C", "F"):
            raise ValueError(f'order is "C" or "F", not {order!r}')
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(side < 0 for side in sides):
            raise ValueError(f"a dimension of {sides} is below zero")
        count = 1
        for side in sides:
            count *= int(side)
        if count * kind.itemsize == 0:
            return numpy.empty(sides, kind, order="C" if order == "C" else "F")
        memory = self._inner.memory(count * kind.itemsize)
        return numpy.ndarray(sides, kind, buffer=memoryview(memory), order="C" if order == "C" else "F")

    def memory(self, size: int | str) -> FarMemory:
        """A buffer of size zero bytes, like the one behind an array from empty()."""
        return self._inner.memory(size)

    def status(self) -> ArenaStatus:
        """Status: local and remote pages, faults, lenders."""
        return self._inner.status()

    @property
    def size(self) -> int:
        """Length of its address range in bytes."""
        return self._inner.size

    def __repr__(self) -> str:
        return repr(self._inner)


def open(
    size: int | str,
    local: int | str,
    *,
    lenders: Sequence[str] | None = None,
    key_file: str | PathLike[str] | None = None,
    insecure: bool = False,
    copies: int = 2,
    per_lender: int | str | None = None,
    spill: str | PathLike[str] | None = None,
    spill_size: int | str | None = None,
    hidden: int | str | None = None,
    packed: int | str | None = None,
    words: int | str | None = None,
    patched: int | str | None = None,
    replacement: str = "dueling",
    threads: int = 4,
    user_faults_only: bool = False,
    wait: str | None = None,
    patience: float = 30.0,
) -> Arena:
    """Open an arena of size bytes of addresses, of which at most local bytes have memory here; the rest is at lenders.

    lenders: their addresses, by default those of NETRAM_LENDERS, where auto stands for those that are found. key_file:
    the cluster key's file, by default that of NETRAM_KEY_FILE, or /etc/netram/key; insecure=True works without one, on
    this machine only.
    copies: number of lenders that hold each page, 1 or 2; with 2 the death of one loses no page. per_lender: most bytes
    at each lender. spill: a directory on a local disk for a file that holds the second copy with one lender, and the
    only copy without lenders; spill_size: its most bytes.

    hidden: local bytes for pages on their way out. packed: local bytes for pages kept compressed. words: gather() and
    scatter() leave a page remote until this many blocks of 16 bytes of it were used, 1 to 256, or "measured", by the
    cost of both; by default pages are transferred whole. patched: local bytes for elements scattered so. replacement:
    which page leaves, "dueling", "fifo", "clock", "lru" or "random". threads: number of faults served at once.
    user_faults_only=True needs no right to userfaultfd, but then system calls on remote pages, such as reading a file
    into an array, fail. wait: "spin", "yield" or "block". patience: seconds that an allocation waits for room.

    Returns at once; lenders are connected in the background. Raises OpenError. The first arena opened is the one that
    netram.far.empty uses.
    """
    global _default
    arena = Arena(
        _netram.open_arena(
            size,
            local,
            lenders=None if lenders is None else list(lenders),
            key_file=key_file,
            insecure=insecure,
            copies=copies,
            per_lender=per_lender,
            spill=spill,
            spill_size=spill_size,
            hidden=hidden,
            packed=packed,
            words=words,
            patched=patched,
            replacement=replacement,
            threads=threads,
            user_faults_only=user_faults_only,
            wait=wait,
            patience=patience,
        )
    )
    if _default is None:
        _default = arena
    return arena


def empty(
    shape: int | Sequence[int], dtype: DTypeLike = float, order: str = "C", *, arena: Arena | None = None
) -> NDArray[Any]:
    """An array of zeros in an arena: the given one, or the first that was opened."""
    chosen = arena if arena is not None else _default
    if chosen is None:
        raise ClosedError("no arena is open; open one with netram.far.open")
    return chosen.empty(shape, dtype, order)


def gather(array: NDArray[Any], indices: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """The elements of a far array at these indices, like array.reshape(-1)[indices].

    In an arena opened with words= remote elements are fetched in one round trip per lender, and their pages stay remote
    until they were used often enough. The array must be contiguous. Raises IndexError, and PageLost if every copy of a
    page is lost.
    """
    import numpy

    memory, places = _places(array, indices)
    raw = memory.gather(array.itemsize, places.tobytes())
    values: NDArray[Any] = numpy.frombuffer(raw, array.dtype).reshape(places.shape)
    if out is None:
        return values
    if out.shape != values.shape:
        raise ValueError(f"{values.shape} elements do not fit into {out.shape}")
    out[...] = values
    return out


def scatter(array: NDArray[Any], indices: ArrayLike, values: ArrayLike) -> None:
    """Store values at these indices of a far array, like array.reshape(-1)[indices] = values.

    For a repeated index the last value stays. In an arena opened with words= values for remote pages are kept locally
    until the page is fetched, and cost no round trip. The array must be contiguous. After an error some values are
    stored. Raises IndexError, NoRoom, and PageLost if every copy of a page is lost.
    """
    import numpy

    memory, places = _places(array, indices)
    stored = numpy.broadcast_to(numpy.asarray(values, array.dtype), places.shape)
    memory.scatter(array.itemsize, places.tobytes(), stored.tobytes())


def _places(array: NDArray[Any], indices: ArrayLike) -> tuple[FarMemory, NDArray[Any]]:
    """The memory behind an array, and the indices converted to indices of that memory."""
    import numpy

    owner: Any = array
    while isinstance(owner, numpy.ndarray):
        owner = owner.base
    memory = owner.obj if isinstance(owner, memoryview) else owner
    if not isinstance(memory, FarMemory):
        raise TypeError("the array is not in far memory; netram.far.empty makes one that is")
    first, rest = divmod(array.ctypes.data - memory.address, max(array.itemsize, 1))
    if not array.flags.c_contiguous or rest != 0:
        raise ValueError("the array is not contiguous, or begins within an element of its memory")
    places = numpy.asarray(indices)
    if places.size == 0:
        places = places.astype("int64")
    if places.dtype.kind not in "iu":
        raise TypeError(f"indices must be whole numbers, not {places.dtype}")
    if places.size > 0 and (int(places.max()) >= array.size or int(places.min()) < -array.size):
        lowest, highest = int(places.min()), int(places.max())
        raise IndexError(f"indices {lowest} to {highest} are out of range of {array.size} elements")
    places = places.astype("int64")
    return memory, (numpy.where(places < 0, places + array.size, places) + first).astype("<u8")
