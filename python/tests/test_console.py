"""Every console block of README and of the guide is typed, and its output compared; numbers, sizes and ids are masked.

All blocks of a page are typed in order into one shell inside `netram play`, in a directory of their own that has the
repository's examples, as root in a mount namespace of its own. A line that begins with `$ ` is a command, one with `# ` a command for root; lines that end in a
backslash go on. What follows is its output: `...` stands for any lines, an empty output may be anything. A Python block
below a line that names `file.py` is that file. Commands with addresses of 10.0.0.0/24 are for other machines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import program

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
# Pages whose commands need what a test must not do, or other machines. Each is named with its reason.
NOT_TYPED = {
    "guide/block-device.md": "waits for a copy, whose time differs by machine",
    "guide/databases/postgresql.md": "makes clusters of PostgreSQL on this machine",
    "guide/operations/keys.md": "rotates keys of services on other machines",
    "guide/operations/lenders.md": "installs and restarts services",
    "guide/operations/monitoring.md": "looks at services on other machines",
    "guide/operations/recovery.md": "recovers what other machines hold",
    "guide/operations/upgrade.md": "restarts services on other machines",
}
# Pages of commands in the foreground that need no root. The others take servers, mounts and devices of this machine, and
# are typed with NETRAM_PAGES=all.
ALWAYS = {"README.md", "guide/recoverable-memory.md", "guide/python.md"}
PAGES = [ROOT / "README.md", *sorted(GUIDE.rglob("*.md"))]
DONE = "typed-and-done"
OWN = ["/srv", "/var/lib/netram", "/run/netram-volume", "/run/netram-mount"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def steps(text: str) -> list[tuple[str, list[str]]]:
    """Commands of a page's console blocks, with the lines that are printed below each."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        lines = iter(block.splitlines())
        for line in lines:
            if line.startswith(("$ ", "# ")):
                command = line[2:]
                while command.endswith("\\"):
                    command += "\n" + next(lines)
                found.append((command, []))
            elif found:
                found[-1][1].append(line)
    return found


def files(text: str) -> dict[str, str]:
    """Programs that a page shows, by the file's name in the line above."""
    return dict(re.findall(r"`([\w-]+\.py)`[^`\n]*\n\n```python\n(.*?)^```", text, re.M | re.S))


def masked(line: str) -> str:
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,}\b", "H", line)
    line = re.sub(r"\d[\d,._]*(?:[eE]-?\d+)?\s?(?:ns|us|µs|ms|s|m|h|[KMGT]?i?B|%)?(?![a-zA-Z])", "N", line)
    line = re.sub(r"/tmp/[\w./-]+", "/tmp/P", line)
    return re.sub(r"[\s─-]+", " ", line).strip()


def differs(expected: list[str], printed: list[str]) -> bool:
    """Whether the output is another one. `...` stands for any number of lines."""
    if not [line for line in expected if line.strip()]:
        return False
    pattern = [masked(line) for line in expected if line.strip()]
    # Log lines differ by what the machine allows.
    lines = [masked(line) for line in printed if line.strip() and not re.match(r"\d{4}-\d\d-\d\dT", line)]

    def match(at: int, have: int) -> bool:
        if at == len(pattern):
            return have == len(lines)
        if pattern[at] == "...":
            return any(match(at + 1, later) for later in range(have, len(lines) + 1))
        return have < len(lines) and pattern[at] == lines[have] and match(at + 1, have + 1)

    return not match(0, 0)


class Shell:
    """A shell inside `netram play`. It ends with the test, and with it the lenders."""

    def __init__(self, directory: Path) -> None:
        own = Path(sys.executable).parent
        tools = directory / ".tools"
        tools.mkdir()
        (tools / "netram").symlink_to(program())
        for name, built in {
            "netram-lab": "netram-lab",
            "libnetram_sqlite.so": "libnetram_sqlite_extension.so",
        }.items():
            (tools / name).symlink_to(Path(program()).with_name(built))
        self.tools = tools
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NETRAM_")}
        environment["PATH"] = f"{tools}:{own}:{environment['PATH']}"
        environment["NETRAM_STATE_DIR"] = str(directory / ".state")
        alone: list[str] = []
        if os.geteuid() == 0:
            # What pages make in these directories is in the test's own. Mounts of tests beside this one are not kept busy
            # by their copies in its namespace.
            foreign = "awk '$2 ~ \"^/(tmp|var/tmp)/\" { print $2 }' /proc/self/mounts | tac | xargs -r -n 1 umount -l"
            binds = [f"{foreign} || true", "set -e"]
            for place in OWN:
                own_place = directory / ".state" / place.strip("/").replace("/", "-")
                own_place.mkdir(parents=True)
                own_place.chmod(0o755)
                binds.append(f"mkdir -p {place}; mount --bind {own_place} {place}")
            alone = ["unshare", "--mount", "sh", "-c", "; ".join(binds) + '; exec "$@"', "sh"]
        self.process = subprocess.Popen(
            [*alone, program(), "play", "--memory", "96MiB", "--", "bash", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str) -> tuple[list[str], int]:
        """Output and exit code of a command."""
        assert self.process.stdin is not None and self.process.stdout is not None
        # Where `make install` puts it.
        command = command.replace("/usr/local/lib/netram/", f"{self.tools}/")
        # What runs in the background has this long to say that it does.
        pause = "sleep 2; " if command.endswith("&") else ""
        self.process.stdin.write(f"{command}\n{pause}echo {DONE} $?\n")
        self.process.stdin.flush()
        printed: list[str] = []
        for line in self.process.stdout:
            if line.startswith(DONE):
                return printed, int(line.split()[1])
            printed.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended at `{command}`: {printed}")

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    typed = steps(page.read_text())
    if name_of(page) in NOT_TYPED:
        pytest.skip(NOT_TYPED[name_of(page)])
    if not typed:
        pytest.skip("no console block")
    if name_of(page) not in ALWAYS and os.environ.get("NETRAM_PAGES") != "all":
        pytest.skip("takes servers, mounts or devices of this machine: NETRAM_PAGES=all")
    needs_root = any(line.startswith("# ") for line in page.read_text().splitlines() if "```" not in line)
    if needs_root and "```console\n# " in page.read_text() and os.geteuid() != 0:
        pytest.skip("some commands are for root")
    tmp_path = Path(tempfile.mkdtemp(prefix="netram-page-"))
    # Users of other names have their commands run here, too.
    tmp_path.chmod(0o755)
    for name, content in files(page.read_text()).items():
        (tmp_path / name).write_text(content)
    for folder in ("python/examples", "crates/netram/examples", "crates/bindings/librvm/examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shell = Shell(tmp_path)
    try:
        for command, expected in typed:
            # The test is in that shell already, and on one machine.
            if re.match(r"netram play\b(?! --)", command) or "10.0.0." in command:
                continue
            printed, code = shell.type(command)
            if absent := re.search(r"(\S+): command not found", "\n".join(printed)):
                pytest.skip(f"needs {absent[1]}")
            if differs(expected, printed):
                pytest.fail(
                    f"`{command}` (exit code {code}) printed\n" + "\n".join(printed) + "\nand not\n" + "\n".join(expected)
                )
    finally:
        shell.end()
        shutil.rmtree(tmp_path)


def test_masking_hides_numbers_and_nothing_else() -> None:
    assert masked("held 3.5 MiB in 12ms, id 1e1093cd7ee5a112") == masked("held 64 KiB in 1.2 s, id 0fab93cd7ee5a000")
    assert masked("2 lenders hold it") != masked("2 lenders lost it")
    assert differs(["a", "b"], ["a"]) and differs(["a"], ["a", "b"])
    assert not differs(["a", "..."], ["a", "b", "c"]) and differs(["a", "...", "d"], ["a", "b"])
    page = "```console\n$ one \\\n  two\nprinted\n# three\n```\n```sh\n$ four\n```\n"
    assert steps(page) == [("one \\\n  two", ["printed"]), ("three", [])]
