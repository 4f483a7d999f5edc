"""Shared regions whose stores are found; reports of a node; a copy saved when the server is lost."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy
import pytest
from conftest import Server, program, served

import netram
import netram.shared
from netram.shared import Node, NodeTransaction

SPAN, PATIENCE = Server.SPAN, Server.PATIENCE


def begun(node: Node, *locks: int) -> NodeTransaction:
    txn = node.begin()
    txn.acquire_all(locks)
    return txn


def under_lock(node: Node, lock: int, length: int) -> bytes:
    with node.begin() as txn:
        txn.acquire(lock, "shared")
        return txn.read(lock * SPAN, length)


@pytest.mark.parametrize("find", ["trap", "watch"])
@pytest.mark.parametrize("capture", ["twins", "pages"])
def test_stores_to_the_whole_memory_are_found_by_page(server: Server, capture: str, find: str) -> None:
    try:
        one = server.join("one", capture=capture, find=find)
    except netram.shared.JoinError as refused:
        assert find == "watch" and "userfaultfd" in str(refused)
        pytest.skip(str(refused))
    with server.join("two") as two:
        whole = numpy.frombuffer(one.memory, dtype=numpy.uint8)
        with begun(one, 1):
            whole[SPAN + 3 : SPAN + 6] = 7
        assert under_lock(two, 1, 8) == bytes([0, 0, 0, 7, 7, 7, 0, 0])
        with begun(two, 1) as txn:
            txn.write(SPAN, b"\1")
        aborted = begun(one, 1)
        whole[SPAN : SPAN + 64] = 9
        aborted.abort()
        assert bytes(whole[SPAN : SPAN + 8]) == bytes([1, 0, 0, 7, 7, 7, 0, 0])

        begun_wrongly = begun(one, 1)
        whole[SPAN] = 2
        whole[2 * SPAN + 4 : 2 * SPAN + 7] = 2
        with pytest.raises(netram.shared.Stray) as caught:
            begun_wrongly.commit()
        stray = caught.value
        assert (stray.offset, stray.length, stray.count, stray.lock, stray.held) == (2 * SPAN + 4, 3, 1, 2, False)
        assert stray.address == one.memory.address + 2 * SPAN + 4 and f"{stray.address:#x}" in str(stray)
        assert isinstance(stray, netram.CommitError) and not stray.unknown
        assert under_lock(one, 2, 8) == bytes(8) and under_lock(one, 1, 1) == b"\1", "put back"

        holds, waits = begun(one, 1), one.begin()
        waits.set_timeout(0.0)
        with pytest.raises(netram.BusyError):
            waits.acquire(2)
        holds.abort()
        waits.set_timeout(PATIENCE)
        waits.acquire(2)
        waits.abort()
        del whole
        one.leave()


@pytest.mark.parametrize("capture", ["verified", "reported"])
def test_undeclared_stores_are_found_in_verified_regions(server: Server, capture: str) -> None:
    with server.join("one", capture=capture) as one, server.join("two") as two:
        with begun(one, 1) as txn:
            kept = txn.array(SPAN, 2)
        assert memoryview(one.memory).readonly
        txn = begun(one, 1)
        txn.write(SPAN, b"declared")
        kept[1] = -1
        if capture == "verified":
            with pytest.raises(netram.shared.Stray) as caught:
                txn.commit()
            assert (caught.value.offset, caught.value.length, caught.value.held) == (SPAN + 8, 8, True)
            assert under_lock(one, 1, 16) == bytes(16)
        else:
            txn.commit()
            assert under_lock(two, 1, 16) == b"declared" + bytes(8)
            assert under_lock(one, 1, 16) == b"declared" + b"\xff" * 8, "in this copy alone"
        assert one.undeclared() == [(SPAN + 8, 8)] and one.undeclared() == []
        del kept


def test_adaptive_pages_are_the_same_at_both_nodes(server: Server) -> None:
    with server.join("one", capture="adaptive") as one, server.join("two") as two:
        for number in range(20):
            with begun(one, 1) as txn:
                txn.array(SPAN, 200)[:] = number
        assert under_lock(two, 1, 1600) == (19).to_bytes(8, "little") * 200


def test_a_node_reports_its_state(server: Server) -> None:
    with server.join("one", listen=f"unix:{server.directory}/peers") as one, server.join("two") as two:
        assert one.spans == [(lock, lock * SPAN, SPAN) for lock in range(Server.LOCKS)]
        assert one.progress.appended == 0 and one.left_behind == []
        end = time.monotonic() + PATIENCE
        # Records take two paths, and the faster one counts.
        while two.straight.taken + two.straight.forgotten == 0:
            assert time.monotonic() < end
            with begun(one, 1) as txn:
                txn.array(SPAN)[:] += 1
        assert one.straight.peers == 1 and one.straight.linked > 0
        appended = one.progress.appended
        assert one.progress.acked == appended > 0
        while one.progress.kept < appended:
            assert time.monotonic() < end


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"capture": "none"}, 'capture "none"'),
        ({"find": "luck"}, 'not "luck"'),
        ({"full": "up"}, 'not "up"'),
        ({"listen": "here"}, "here"),
        ({"group": "127.0.0.1:1"}, "multicast"),
    ],
)
def test_an_invalid_choice_is_refused(server: Server, wrong: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        server.join("one", **wrong)


def test_a_lost_region_is_rebuilt_from_a_copy(tmp_path: Path, own_settings: None) -> None:
    # The lease must expire, but on a busy machine not before the node has written.
    with served(tmp_path, lease="5s") as server:
        node = server.join("one")
        with begun(node, 1) as txn:
            txn.write(SPAN, b"saved")
        txn = begun(node, 2)
        with pytest.raises(netram.BusyError):
            node.save_copy(tmp_path / "early")
        txn.abort()
        with pytest.raises(netram.shared.Served):
            node.save_copy(tmp_path / "early")
        server.stop()
        end = time.monotonic() + PATIENCE
        copied = False
        while not copied:
            assert time.monotonic() < end
            try:
                node.save_copy(tmp_path / "copy")
                copied = True
            except netram.shared.Served:
                time.sleep(0.01)
        with pytest.raises(netram.shared.SaveError):
            node.save_copy(tmp_path / "copy")
        node.abandon()
        server.region.rename(tmp_path / "lost")
        rescue: list[str | Path] = [program(), "shared", "rescue", server.region, tmp_path / "copy"]
        subprocess.run(rescue, check=True, stdout=subprocess.DEVNULL)
        server.serve()
        with server.join("one") as node:
            assert node.memory[SPAN : SPAN + 5] == b"saved"
            [(path, _)] = node.left_behind
            assert path.startswith(str(tmp_path / "one"))
