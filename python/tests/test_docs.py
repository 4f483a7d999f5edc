"""The examples in the documents run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Lender, Server, program

TREE = Path(__file__).parents[2]


def examples(document: str) -> str:
    """The Python blocks of a document, concatenated."""
    blocks = (TREE / document).read_text(encoding="utf-8").split("```python\n")[1:]
    assert blocks, f"{document} shows nothing"
    return "\n".join(block.partition("```")[0] for block in blocks)


def test_the_example_of_shared_regions_runs(directory: Path, server: Server) -> None:
    script = examples("docs/guide/shared-memory.md")
    checks = "\nassert free == 0 and txn.result is not None and txn.result.lenders == 1\n"
    environment = os.environ | {"NETRAM_KEY_FILE": str(server.key)}
    command = [sys.executable, "-c", script + checks, server.address, "node"]
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("document", ["docs/guide/python.md"])
def test_the_examples_of_a_document_run(directory: Path, lender: Callable[..., Lender], document: str) -> None:
    subprocess.run([program(), "key", "create", directory / "cluster.key"], check=True, stdout=subprocess.DEVNULL)
    address = lender("--key-file", str(directory / "cluster.key"), "--domain", "ups-1").address
    script = examples(document).replace("tcp://10.0.0.2:7420", address)
    checks = "\nassert tx.result is not None and tx.result.lsn is not None\n"
    # As `netram play` sets them.
    environment = os.environ | {"NETRAM_LENDERS": address, "NETRAM_KEY_FILE": str(directory / "cluster.key")}
    ran = subprocess.run(
        [sys.executable, "-c", script + checks], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert (directory / "bank.log").is_file()
