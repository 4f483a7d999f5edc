"""Opening, creating, closing and querying a store."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SIZE, Child, Lender, reopened

import netram


def test_a_store_is_created_once(directory: Path) -> None:
    path = directory / "bank.log"
    with pytest.raises(netram.OpenError, match="no log exists at .*netram.create"):
        netram.open(path)
    netram.create(path, "1MiB")
    with pytest.raises(netram.OpenError, match="a log already exists at"):
        netram.create(path, 1 << 20)
    with netram.open(path) as store:
        assert store.query().capacity == 1 << 20
        assert store.path == str(path)
        assert not store.closed
    assert store.closed


def test_a_directory_can_hold_a_store(directory: Path) -> None:
    netram.create(directory / "bank", 1 << 20, directory=True)
    assert (directory / "bank" / "log").is_file()
    with netram.open(directory / "bank") as store:
        assert store.query().tail == 0


def test_create_opens_an_existing_log_or_creates_one(directory: Path) -> None:
    for epoch in (1, 2):
        with netram.open(str(directory / "bank.log"), create=True, log_size=65536) as store:
            assert store.recovered.epoch == epoch
            assert store.query().capacity == 65536


@pytest.mark.parametrize("size", ["1 parsec", -1, 1.5, 1, "2TiB", None])
def test_an_invalid_size_is_refused(directory: Path, size: object) -> None:
    if size is None:
        with pytest.raises(netram.SegmentError, match="needs a size"):
            with netram.open(directory / "log", create=True, log_size="1MiB") as store:
                store.segment(directory / "data", create=True)
        return
    with pytest.raises((ValueError, TypeError, netram.OpenError)):
        netram.create(directory / "log", size)  # type: ignore[arg-type]


def test_the_settings_file_is_read_beside_the_log(directory: Path) -> None:
    netram.create(directory / "bank.log", "1MiB")
    (directory / "bank.log.toml").write_text("[journal]\nlenders = ['tcp://127.0.0.1:1']\ninsecure = true\n")
    with netram.open(directory / "bank.log") as store:
        assert [lender.address for lender in store.query().lenders] == ["tcp://127.0.0.1:1"]
    with netram.open(directory / "bank.log", lenders=[]) as store:
        assert store.query().lenders == []
    (directory / "bank.log.toml").write_text("[journal]\nlender = []\n")
    with pytest.raises(netram.OpenError, match="lender"):
        netram.open(directory / "bank.log")


def test_the_environment_overrides_the_file_and_arguments_override_both(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netram.create(directory / "bank.log", "1MiB")
    (directory / "bank.log.toml").write_text("[journal]\nlenders = ['tcp://127.0.0.1:1']\ninsecure = true\n")
    monkeypatch.setenv("NETRAM_LENDERS", "tcp://127.0.0.1:2,tcp://127.0.0.1:3")
    with netram.open(directory / "bank.log") as store:
        assert len(store.query().lenders) == 2
    with netram.open(directory / "bank.log", lenders=("tcp://127.0.0.1:4",)) as store:
        assert [lender.address for lender in store.query().lenders] == ["tcp://127.0.0.1:4"]
        assert store.query().lenders[0].role == "spare"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lenders": ["10.0.0.2"]}, "lenders"),
        ({"lenders": ["tcp://127.0.0.1:1"]}, "key"),
        ({"lenders": ["tcp://127.0.0.1:1"], "insecure": True, "key_file": "k"}, "insecure"),
        ({"lenders": ["tcp://127.0.0.1:1"], "key_file": "/nowhere/key"}, "/nowhere/key"),
        ({"lenders": ["tcp://127.0.0.1:1"], "insecure": True, "members": 2}, "2 members"),
        ({"rule": "most"}, "rule"),
        ({"rule": 99}, "rule"),
        ({"wait": "patiently"}, "wait"),
        ({"window": "huge"}, "size"),
        ({"window": 1}, "window"),
        ({"truncation_threshold": 100}, "100 %"),
    ],
)
def test_invalid_settings_are_refused(directory: Path, settings: dict[str, Any], message: str) -> None:
    netram.create(directory / "bank.log", "1MiB")
    with pytest.raises((ValueError, netram.OpenError), match=message):
        netram.open(directory / "bank.log", **settings)
    with netram.open(directory / "bank.log"):
        pass


def test_a_second_opening_is_refused_with_the_process_id(store: netram.Store, directory: Path) -> None:
    with pytest.raises(netram.InUse, match=f"process {os.getpid()}"):
        netram.open(directory / "bank.log")
    code = f"import netram\ntry: netram.open({str(directory / 'bank.log')!r})\nexcept netram.InUse as e: print(e)"
    ran = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert f"process {os.getpid()}" in ran.stdout


def test_a_segment_of_another_store_is_in_use(store: netram.Store, region: netram.Region, directory: Path) -> None:
    with netram.open(directory / "other.log", create=True, log_size="1MiB") as other:
        with pytest.raises(netram.InUse, match="in use"):
            other.segment(directory / "bank.data").map()


def test_segments_are_found_created_and_forgotten(store: netram.Store, directory: Path) -> None:
    path = directory / "data"
    with pytest.raises(netram.SegmentError, match="create it"):
        store.segment(path)
    segment = store.segment(path, size="64KiB", create=True)
    assert (segment.size, segment.path) == (65536, str(path))
    assert store.segment(path, size=65536, create=True).size == 65536
    with pytest.raises(netram.SegmentError, match="65536 bytes, not 4096"):
        store.segment(path, size=4096)
    assert path.stat().st_blocks * 512 >= 65536, "all blocks are there"
    sparse = store.segment(directory / "sparse", size=65536, create=True, sparse=True)
    assert (directory / "sparse").stat().st_blocks == 0
    region = segment.map()
    with pytest.raises(netram.SegmentError, match="mapped"):
        store.forget(path)
    region.unmap()
    assert [path for path, _ in store.query().segments] == [str(path)]
    store.forget(path)
    assert store.query().segments == []
    with pytest.raises(netram.SegmentError, match="knows no segment"):
        store.forget(path)
    path.unlink()
    with pytest.raises(netram.SegmentError):
        _ = segment.size
    with pytest.raises(netram.SegmentError, match="does not exist"):
        segment.map()
    assert "sparse" in repr(sparse)


def test_a_path_that_is_not_utf8_is_refused(store: netram.Store, directory: Path) -> None:
    name = os.fsdecode(os.fsencode(directory) + b"/\xff")
    with pytest.raises(netram.SegmentError, match="UTF-8"):
        store.segment(name, size=4096, create=True)


def test_query_and_statistics_reflect_commits(store: netram.Store, region: netram.Region) -> None:
    with store.transaction("disk") as tx:
        tx.write(region, 100, b"abc")
        query = store.query()
        assert query.open_transactions == 1
        assert [(info.offset, info.length, info.transactions) for info in query.regions] == [(0, SIZE, 1)]
    with store.transaction("lazy") as tx:
        tx.write(region, 200, b"def")
    with store.transaction() as tx:
        pass
    store.transaction().abort()
    counted = store.statistics()
    assert (counted.begun, counted.aborts, counted.empty_commits, counted.lazy_commits) == (4, 1, 1, 1)
    assert counted.flush_commits == 1
    assert (counted.bytes_declared, counted.bytes_committed, counted.ranges_logged) == (6, 6, 2)
    assert counted.bytes_logged > 6
    query = store.query()
    assert 0 == query.head < query.tail <= query.capacity
    assert query.head <= query.stable <= query.tail
    assert query.epoch == 1
    assert len(query.journal) == 32
    assert query.transaction_bytes_max < query.capacity
    assert query.blocked is not None and "no lenders" in query.blocked
    assert query.disk_error is None
    lost, size, age = query.at_risk[-1]
    assert lost == "all" and size >= 0 and age >= 0
    for value in (store, region, tx, query, counted, store.recovered, query.regions[0]):
        assert "netram." in repr(value)


def test_flush_and_truncate_move_the_log_on(store: netram.Store, region: netram.Region, directory: Path) -> None:
    with store.transaction("lazy") as tx:
        tx.write(region, 4096, b"truncated")
    store.flush()
    query = store.query()
    assert query.stable == query.tail > query.head
    assert (directory / "bank.data").read_bytes()[4096:4105] == bytes(9)
    store.truncate()
    assert store.query().head == store.query().tail
    assert (directory / "bank.data").read_bytes()[4096:4105] == b"truncated"
    with pytest.raises(ValueError, match='durability "soon"'):
        store.flush("soon")  # type: ignore[arg-type]


def test_commits_survive_closing_and_opening(directory: Path) -> None:
    with netram.open(directory / "bank.log", create=True, log_size="1MiB") as store:
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        with store.transaction() as tx:
            tx.write(region, 5, b"kept")
    store, region = reopened(directory)
    assert region[5:9] == b"kept"
    assert store.recovered.loss_accepted is None
    assert store.recovered.seconds >= 0
    store.close()


def test_a_damaged_log_is_refused_with_a_message(directory: Path) -> None:
    netram.create(directory / "bank.log", "1MiB")
    with (directory / "bank.log").open("r+b") as log:
        log.write(b"\x55" * 16384)
    with pytest.raises(netram.OpenError):
        netram.open(directory / "bank.log")
    (directory / "bank.log.view").write_bytes(b"nothing")
    with pytest.raises(netram.OpenError):
        netram.open(directory / "bank.log")


def test_waiting_for_lenders_fails_if_none_are_configured(store: netram.Store) -> None:
    with pytest.raises(netram.LendersMissing, match="no lenders are configured"):
        store.wait_for_lenders(0.05)
    with pytest.raises(TimeoutError):
        store.wait_for_lenders(timeout=0)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="seconds"):
            store.wait_for_lenders(wrong)


def test_a_commit_reaches_its_lender(lender: Callable[..., Lender], directory: Path) -> None:
    address = lender().address
    settings: dict[str, Any] = {"lenders": [address], "insecure": True, "one_domain": True}
    with netram.open(directory / "bank.log", create=True, log_size="1MiB", **settings) as store:
        store.wait_for_lenders()
        region = store.segment(directory / "bank.data", size=SIZE, create=True).map()
        with store.transaction("both") as tx:
            tx.write(region, 0, b"x")
        assert tx.result is not None
        assert (tx.result.lenders, tx.result.rule, tx.result.disk) == (1, True, True)
        [one] = store.query().lenders
        assert (one.address, one.link, one.role, one.member) == (address, "ready", "member", True)
        assert one.reason is None
        assert address in repr(one)
        assert store.query().blocked is None


def test_lenders_in_one_domain_do_not_count_by_default(lender: Callable[..., Lender], directory: Path) -> None:
    settings: dict[str, Any] = {"lenders": [lender().address], "insecure": True}
    with netram.open(directory / "bank.log", create=True, log_size="1MiB", **settings) as store:
        with pytest.raises(netram.LendersMissing, match="one-domain|are members"):
            store.wait_for_lenders(1.0)


def test_a_store_with_a_cluster_key_needs_that_key(lender: Callable[..., Lender], directory: Path) -> None:
    from conftest import program

    for name in ("right.key", "wrong.key"):
        subprocess.run([program(), "key", "create", directory / name], check=True, stdout=subprocess.DEVNULL)
    address = lender("--key-file", str(directory / "right.key"), "--domain", "ups-1").address
    netram.create(directory / "bank.log", "1MiB")
    with netram.open(directory / "bank.log", lenders=[address], key_file=directory / "right.key") as store:
        store.wait_for_lenders()
        assert store.query().lenders[0].domain == "ups-1"
    with netram.open(directory / "bank.log", lenders=[address], key_file=directory / "wrong.key") as store:
        with pytest.raises(netram.LendersMissing, match="cluster key is not ours"):
            store.wait_for_lenders(0.5)
        [one] = store.query().lenders
        assert one.reason is not None and "cluster key is not ours" in one.reason


def test_a_store_left_open_is_closed_at_exit(child: Callable[..., Child], directory: Path) -> None:
    script = """
import sys, netram
store = netram.open(sys.argv[1] + "/bank.log", create=True, log_size="1MiB")
region = store.segment(sys.argv[1] + "/bank.data", size=1 << 20, create=True).map()
view = memoryview(region)
with store.transaction("lazy") as tx:
    tx.write(region, 0, b"lazy")
"""
    assert child(script, directory).end() == 0
    store, region = reopened(directory)
    assert region[:4] == b"lazy"
    store.close()


def test_paths_may_be_of_any_kind(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    with netram.open("bank.log", create=True, log_size="1MiB") as store:
        assert store.path == str(directory / "bank.log")
        segment = store.segment(pathlib.PurePath("a"), size=4096, create=True)
        assert segment.path == str(directory / "a")
        monkeypatch.chdir("/")
        assert len(segment.map()) == 4096
    with pytest.raises(TypeError):
        netram.open(3)  # type: ignore[arg-type]
