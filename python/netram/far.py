"""Far memory: arrays larger than this machine's memory. What does not fit is at lenders, encrypted, each page at two of them.

    import netram.far

    arena = netram.far.open("16GiB", "2GiB", lenders=["tcp://10.0.0.2:7420", "tcp://10.0.0.3:7420"], key_file="cluster.key")
    matrix = arena.empty((30_000, 30_000), "float64")   # zeros, nowhere until they are written
    matrix[:, 7] += 1

An array is a NumPy array as any other. A page that is referenced while it is away comes from a lender, and another one leaves.
Far memory is memory: what is in it ends with the process. docs/far.md says how it works and what it survives;
docs/python.md has the calls.
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
    """Addresses of which a part has memory here. Its arrays may outlive it; it ends with the last of them."""

    def __init__(self, inner: _netram.Arena) -> None:
        self._inner = inner

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
        """An array of this shape, of zeros. Raises NoRoom when the arena has not so many addresses in a row."""
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"far memory has numbers, no Python objects: {kind}")
        if order not in ("C", "F"):
            raise ValueError(f'order is "C" or "F", not {order!r}')
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(side < 0 for side in sides):
            raise ValueError(f"a side of {sides} is below zero")
        count = 1
        for side in sides:
            count *= int(side)
        if count * kind.itemsize == 0:
            return numpy.empty(sides, kind, order="C" if order == "C" else "F")
        memory = self._inner.memory(count * kind.itemsize)
        return numpy.ndarray(sides, kind, buffer=memoryview(memory), order="C" if order == "C" else "F")

    def memory(self, size: int | str) -> FarMemory:
        """So many bytes, zeros, as a buffer: what empty() makes an array of."""
        return self._inner.memory(size)

    def status(self) -> ArenaStatus:
        """How it stands: pages here and away, faults, lenders."""
        return self._inner.status()

    @property
    def size(self) -> int:
        """Bytes of its addresses."""
        return self._inner.size

    def __repr__(self) -> str:
        return repr(self._inner)


def open(
    size: int | str,
    local: int | str,
    *,
    lenders: Sequence[str] = (),
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

    lenders: their addresses. key_file is the cluster's key; insecure=True goes without, on this machine only. copies: at how many
    lenders a page is, 1 or 2; with 2, one may die and no page is lost. per_lender: the most bytes at each. spill: a directory
    on a local disk, for a file that is the second copy where there is one lender, and the only one where there is none;
    spill_size: its most bytes. hidden: bytes of local for pages on their way out. packed: bytes of local for pages that
    stay here compressed. words: gather() and scatter() leave pages away until so many blocks of 16 bytes of one were used,
    1 to 256, or "measured", what they and pages cost; pages come whole unless given. patched: bytes of local for
    what was scattered so. replacement: which page leaves, "dueling", "fifo", "clock", "lru" or "random". threads: so many
    faults are served at once. user_faults_only=True needs no right to userfaultfd, but then system calls on pages that are
    away (reading a file into an array) fail. wait: "spin", "yield" or "block". patience: seconds that growing waits for room.

    Returns at once; lenders are connected meanwhile. Raises OpenError. The first one that is opened is the one that
    netram.far.empty takes.
    """
    global _default
    arena = Arena(
        _netram.open_arena(
            size,
            local,
            lenders=list(lenders),
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
    """An array of zeros in an arena; in the first that was opened, unless one is given."""
    chosen = arena if arena is not None else _default
    if chosen is None:
        raise ClosedError("there is no arena yet; open one with netram.far.open")
    return chosen.empty(shape, dtype, order)


def gather(array: NDArray[Any], indices: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """The elements of a far array at these places of array.reshape(-1), as array.reshape(-1)[indices] has them.

    In an arena that was opened with words= those that are away come in one round trip a lender, and their pages stay where they are until
    they have earned to come. The array is contiguous. Raises IndexError; PageLost where every copy of a page is lost.
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
    """Store values at these places of a far array, as array.reshape(-1)[indices] = values does; of a place that is named twice the last stays.

    In an arena that was opened with words= what is away is kept here until its page comes, and costs no round trip. The array is
    contiguous. After an error some are stored, and others are not. Raises IndexError; PageLost where every copy of a page is lost; NoRoom.
    """
    import numpy

    memory, places = _places(array, indices)
    stored = numpy.broadcast_to(numpy.asarray(values, array.dtype), places.shape)
    memory.scatter(array.itemsize, places.tobytes(), stored.tobytes())


def _places(array: NDArray[Any], indices: ArrayLike) -> tuple[FarMemory, NDArray[Any]]:
    """The memory that an array lies in, and places of that memory."""
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
        raise TypeError(f"places are whole numbers, not {places.dtype}")
    if places.size > 0 and (int(places.max()) >= array.size or int(places.min()) < -array.size):
        raise IndexError(f"places {int(places.min())} to {int(places.max())} of {array.size}")
    places = places.astype("int64")
    return memory, (numpy.where(places < 0, places + array.size, places) + first).astype("<u8")
