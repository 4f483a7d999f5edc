"""Every console block of README and of the guide is typed, and its output compared; times and sizes are masked.

All blocks of a page are typed in order into one shell inside `netram play`, in a directory of their own that
has the repository's examples. A line that begins with `$ ` is a command, one with `# ` a command for root; lines
that end in a backslash go on. The lines below are its output: `...` stands for any lines. A Python block below a
line that names `file.py` is that file. A page waits for a state by a command that its readers can type, too;
nothing here waits for a time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import console
from console import ALONE, ROOT, Shell, Step, differs, files, masked, remove, steps

GUIDE = ROOT / "docs" / "guide"
TEXTS = {page: page.read_text() for page in [ROOT / "README.md", *sorted(GUIDE.rglob("*.md"))]}
PAGES = [page for page, text in TEXTS.items() if steps(text)]
#: Pages at a time: most of what they do is waiting.
AT_ONCE = 3
#: Programs that a machine may lack, each with what has it.
MAY_LACK = {
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "kine": "kine",
    "litestream": "litestream",
    "mariadb": "MariaDB",
    "mariadb-install-db": "MariaDB",
    "mkfs.ext4": "e2fsprogs",
    "nats-server": "nats-server",
    "nbdinfo": "libnbd-bin",
    "od": "coreutils",
    "pg_createcluster": "PostgreSQL",
    "pg_ctlcluster": "PostgreSQL",
    "pg_dropcluster": "PostgreSQL",
    "redis-cli": "redis-tools",
    "redis-server": "redis-server",
    "sqlite3": "sqlite3",
    "strings": "binutils",
}
#: Other commands that pages type, netram's own aside: every machine has them.
EVERYWHERE = set(
    "cat cd echo for install kill ls mkdir mount mv netram printf python3 rm setsid sleep su tail timeout umount until"
    " while yes".split()
)
#: Commands that show the last count that a killed program printed, and the one in its data.
COUNTS = re.compile(r"^tail -n 1 printed|\bbank\.data$")
NUMBER = re.compile(r"\s*\d+")
#: What commands need of the kernel.
NEEDED = {r"netram mount attach": ["/dev/fuse"], r"netram volume attach|--format": ["/dev/fuse", "/dev/loop-control"]}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def program_of(command: str) -> str:
    """The program that a command begins with, which assignments may precede."""
    words = re.sub(r"[()]", " ", command).split()
    return next((word for word in words if "=" not in word), "")


def lacks(command: str) -> str | None:
    """What this machine lacks for a command."""
    for pattern, devices in NEEDED.items():
        for device in devices:
            if re.search(pattern, command) and not os.access(device, os.R_OK | os.W_OK):
                return f"no access to {device}"
    # One in the background may print nothing here.
    program = program_of(command)
    if program in MAY_LACK and not shutil.which(program):
        return f"no {MAY_LACK[program]}"
    version = re.search(r"pg_createcluster\b.* (\d+) ", command)
    if version and shutil.which("pg_createcluster") and not Path("/usr/lib/postgresql", version[1]).exists():
        return f"no PostgreSQL {version[1]}"
    if re.search(r"netram run\b|far\.py", command) and os.geteuid() != 0:
        allowed = Path("/proc/sys/vm/unprivileged_userfaultfd")
        if not os.access("/dev/userfaultfd", os.R_OK | os.W_OK) and not (allowed.exists() and "1" in allowed.read_text()):
            return "no access to userfaultfd"
    return None


def lacked(printed: list[str]) -> str | None:
    """The program that was not found, if a machine may lack it."""
    absent = re.search(r"(\S+): command not found", "\n".join(printed))
    return f"no {MAY_LACK[absent[1]]}" if absent and absent[1] in MAY_LACK else None


def may_type(text: str) -> None:
    """Skips a page where this user may not type it."""
    if os.geteuid() != 0:
        if any(step.as_root or "/srv" in step.command for step in steps(text)):
            pytest.skip("not root")
        return
    alone = subprocess.run([*ALONE, "true"], capture_output=True, text=True, check=False)
    if alone.returncode != 0:
        pytest.skip(f"no namespaces: {alone.stderr.strip()}")
    if not shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
        pytest.skip("no iproute2")


def type_page(page: Path) -> None:
    text = TEXTS[page]
    may_type(text)
    # On a disk: a journal's file system is one, and /tmp may be memory.
    directory = Path(tempfile.mkdtemp(prefix="netram-page-", dir="/var/tmp"))
    # Users of other names have their commands run here, too.
    directory.chmod(0o755)
    try:
        for name, content in files(text).items():
            (directory / name).write_text(content)
        for folder in ("python/examples", "crates/netram/examples", "crates/bindings/librvm/examples"):
            shutil.copytree(ROOT / folder, directory / folder)
        shell = Shell(directory, text)
        try:
            for step in steps(text):
                type_step(shell, step)
        finally:
            shell.end()
    finally:
        remove(directory)


def type_step(shell: Shell, step: Step) -> None:
    command, expected, _ = step
    if reason := lacks(command):
        pytest.skip(f"{reason}, at `{command}`")
    # That shell is this one.
    printed, code = (shell.greeting, 0) if command == "netram play" else shell.type(command, expected)
    if reason := lacked(printed):
        pytest.skip(f"{reason}, at `{command}`")
    if command == "netram play" and not expected:
        return
    if COUNTS.search(command):
        counts = [int(line) for line in printed if NUMBER.fullmatch(line)]
        shell.counts = counts if command.startswith("tail") else shell.counts + counts
        if not shell.counts or not 0 < shell.counts[0] <= shell.counts[-1] <= shell.counts[0] + 1:
            raise AssertionError(f"`{command}`: of {shell.counts} each must be the last that was printed, or one more")
        expected, printed = ([NUMBER.sub("N", line) for line in lines] for lines in (expected, printed))
    shown = "\n".join(expected) or "nothing"
    if differs(expected, printed):
        raise AssertionError("\n".join([f"`{command}` (exit code {code}) printed", *printed, f"and not\n{shown}"]))
    # Commands that wait for what they killed have its code.
    if not expected and code not in (0, 137, 143):
        raise AssertionError(f"`{command}` ended with exit code {code}")


@pytest.fixture(scope="session")
def typed(request: pytest.FixtureRequest) -> Iterator[dict[Path, Future[None]]]:
    """All pages that were asked for, being typed."""
    asked = [item.callspec.params["page"] for item in request.session.items if hasattr(item, "callspec")]
    # Without namespaces they would meet: some use the same ports.
    with ThreadPoolExecutor(AT_ONCE if os.geteuid() == 0 else 1) as pool:
        longest_first = sorted(asked, key=lambda page: -len(steps(TEXTS[page])))
        yield {page: pool.submit(type_page, page) for page in longest_first}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path, typed: dict[Path, Future[None]]) -> None:
    wrong = typed[page].exception()
    # Where in this file it was found is of no interest.
    if isinstance(wrong, AssertionError):
        pytest.fail(str(wrong), pytrace=False)
    typed[page].result()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_program_is_one_whose_absence_is_said(page: Path) -> None:
    """Otherwise a page passes where it was written, and fails on a machine that has less."""
    text = TEXTS[page]
    own = set(re.findall(r"^\$ (\w+)\(\)", text, re.M))
    begins = {program_of(step.command) for step in steps(text)} - {""}
    assert begins <= own | EVERYWHERE | MAY_LACK.keys()


def test_masking_hides_numbers_and_nothing_else() -> None:
    assert masked("held 3.5 MiB in 12ms, id 1e1093cd7ee5a112") == masked("held 64 KiB in 1.2 s, id 0fab93cd7ee5a000")
    assert masked("heard 1s 200ms ago") == masked("heard 502ms ago")
    assert masked("200") != masked("300")
    assert masked("1 record recovered") == masked("12 records recovered")
    assert masked("2 lenders hold it") != masked("2 lenders lost it")
    assert masked("2 copies, 2 domains") != masked("1 copy, 1 domain")
    assert differs(["a", "b"], ["a"]) and differs(["a"], ["a", "b"]) and differs([], ["a"])
    assert not differs(["a", "..."], ["a", "b", "c"]) and differs(["a", "...", "d"], ["a", "b"])
    assert not differs([], ["bash: line 7:  4321 Killed                  sleep 9", ""])
    page = "```console\n$ one \\\n  two\nprinted\n# three\n```\n```sh\n$ four\n```\n"
    assert steps(page) == [("one \\\n  two", ["printed"], False), ("three", [], True)]


def test_a_command_that_hangs_is_named_with_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_type("")
    shell = Shell(tmp_path, "")
    monkeypatch.setattr(console, "COMMAND_S", 1.0)
    try:
        with pytest.raises(AssertionError, match=r"(?s)`echo begun; sleep 99` did not end .*\nbegun"):
            shell.type("echo begun; sleep 99", [])
    finally:
        shell.end()
