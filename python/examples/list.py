"""A list that processes share: entries are blocks of a heap in a shared region, linked by their offsets.

    netram shared create /var/lib/list --size 1MiB --span-size 1MiB
    netram shared serve /var/lib/list --listen tcp://0.0.0.0:7440 --key-file cluster.key

    python list.py tcp://plan:7440 node-1 cluster.key add milk bread    # each process has its own directory
    python list.py tcp://plan:7440 node-2 cluster.key add salt
    python list.py tcp://plan:7440 node-3 cluster.key show              # all entries, newest first
    python list.py tcp://plan:7440 node-4 cluster.key take              # removes and prints the newest entry
"""

from __future__ import annotations

import struct
import sys

import netram
import netram.shared
from netram.shared import Node, NodeHeap

LOCK = 0  # covers the whole region with its heap
FIRST = 0  # root of the newest entry
ENTRY = struct.Struct("Q48s")  # block of the next entry, and a text


def heap_of(node: Node) -> NodeHeap:
    """The heap, made by the first process that finds none."""
    with node.begin() as txn:
        txn.acquire(LOCK)
        try:
            return txn.heap(LOCK)
        except netram.NoHeap:  # only this error: formatting would erase a damaged or newer heap
            txn.format_heap(LOCK)
    return heap_of(node)


def add(node: Node, heap: NodeHeap, text: str) -> None:
    with node.begin() as txn:  # commits at the end: then the entry is safe and visible to all
        txn.acquire(LOCK)
        entry = heap.store(txn, ENTRY.pack(heap.root(FIRST), text.encode()))
        heap.set_root(txn, FIRST, entry)


def show(node: Node, heap: NodeHeap) -> None:
    with node.begin() as txn:
        txn.acquire(LOCK, "shared")
        entry = heap.root(FIRST)
        while entry:
            entry, text = ENTRY.unpack(heap.read(entry, ENTRY.size))
            print(text.rstrip(b"\0").decode())


def take(node: Node, heap: NodeHeap) -> bool:
    """Removes and prints the newest entry; returns False if there is none."""
    with node.begin() as txn:
        txn.acquire(LOCK)
        entry = heap.root(FIRST)
        if entry:
            following, text = ENTRY.unpack(heap.read(entry, ENTRY.size))
            heap.set_root(txn, FIRST, following)
            heap.free(txn, entry)
    if entry:
        print(text.rstrip(b"\0").decode())
    return entry != 0


def main(server: str, directory: str, key_file: str, what: str, *texts: str) -> int:
    with netram.shared.join(server, directory, key_file=key_file) as node:
        heap = heap_of(node)
        if what == "add":
            for text in texts:
                add(node, heap, text)
        elif what == "show":
            show(node, heap)
        else:
            return 0 if take(node, heap) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
