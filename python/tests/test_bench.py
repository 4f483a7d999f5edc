"""The benchmark runs and prints every row. Its figures are not checked, because the machine is busy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import program

import netram.bench


def test_a_quick_run_fills_every_row(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert netram.bench.main(["--quick", "--json", "--netram", program(), "--dir", str(directory)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 5
    assert all(0 < row["p50"] <= row["p99"] for row in rows)
    assert list(directory.iterdir()) == [], "nothing is left behind"


def test_a_missing_program_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        netram.bench.main(["--netram", "/nowhere/netram"])
    assert "make install" in capsys.readouterr().err
