"""Objects used in any order, from several threads, in any state, raise exceptions and never crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Child, reopened

# Each thread performs random operations on shared objects. Only exceptions of the package and BufferError are allowed;
# any other exception or a signal fails the test.
ABUSER = """
import gc, random, sys, threading
import numpy, netram
directory, seed = sys.argv[1], int(sys.argv[2])
pool, failures = {"store": [], "region": [], "view": [], "tx": [], "heap": []}, []
netram.create(directory + "/bank.log", "256KiB")

def act(rng):
    def any_of(kind):
        return rng.choice(pool[kind]) if pool[kind] else None
    def keep(kind, one):
        if len(pool[kind]) < 8:
            pool[kind].append(one)
        else:
            pool[kind][rng.randrange(8)] = one
    def drop(kind):
        if len(pool[kind]) > (kind == "store"):
            pool[kind].pop(rng.randrange(len(pool[kind])))
    store, region, view, tx, heap = (any_of(kind) for kind in pool)
    offset, length = rng.choice([0, 8, 4096, 65536, 10**9]), rng.choice([0, 1, 100, 4096, 10**9])
    choice = rng.randrange(24)
    if store is None or store.closed:
        # Objects of another thread keep the last store open, so they are dropped.
        for kind in pool:
            pool[kind].clear()
        del store, region, view, tx, heap
        keep("store", netram.open(directory + "/bank.log"))
    elif choice == 0:
        netram.open(directory + "/bank.log")
    elif choice == 1 or not pool["region"]:
        part = rng.randrange(4) * 65536
        keep("region", store.segment(directory + "/data", size=4 * 65536, create=True).map(part, 65536))
    elif choice in (2, 3):
        keep("tx", store.transaction(rng.choice(["remote", "disk", "lazy"]), rng.random() < 0.5))
    elif choice == 4 and rng.random() < 0.2:
        store.close()
    elif choice == 5:
        rng.choice([store.flush, store.truncate, store.query, store.statistics])()
    elif choice == 6:
        drop(rng.choice(list(pool)))
    elif choice == 7 and rng.random() < 0.1:
        for kind in pool:
            pool[kind].clear()
        del store, region, view, tx, heap
        gc.collect()
    elif choice == 8 and tx:
        tx.commit()
    elif choice == 9 and tx:
        tx.abort()
    elif choice == 10 and tx:
        with tx:
            if rng.random() < 0.5:
                raise netram.Error("out of it")
    elif choice in (11, 12):
        keep("view", rng.choice([memoryview, lambda r: numpy.frombuffer(r, dtype="u1")])(region))
    elif choice == 13:
        region.unmap()
    elif choice == 14:
        region[offset : offset + length], region[offset % 65536]
    elif choice == 15:
        keep("heap", rng.choice([netram.Heap, netram.Heap.format])(region))
    elif choice in (16, 17) and tx:
        tx.write(region, offset, bytes(length % 70000))
    elif choice == 18 and tx:
        tx.set_range(region, offset, length)
    elif choice == 19 and tx and view is not None:
        tx.set_range(view[: length % 5000])
    elif choice == 20 and view is not None and len(view) > 9:
        # Also overwrites the heap's own bytes.
        view[rng.choice([9, rng.randrange(len(view))])] = rng.randrange(256)
    elif choice in (21, 22) and heap and tx:
        keep("view", memoryview(region)[: heap.store(tx, bytes(length % 9000))])
    elif choice == 23 and heap and tx:
        heap.free(tx, rng.choice([offset, *[block for block, _ in heap.check()]]))

def work(number):
    rng = random.Random(seed * 100 + number)
    for _ in range(3000):
        try:
            act(rng)
        except (netram.Error, BufferError, IndexError):
            pass
        except BaseException as error:
            failures.append(repr(error))
            raise

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(1 if failures else 0)
"""


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_calls_crashes(directory: Path, child: Callable[..., Child], seed: int) -> None:
    assert child(ABUSER, directory, seed).end() == 0
    if (directory / "data").exists():
        store, _ = reopened(directory, segment="data")
        store.close()
