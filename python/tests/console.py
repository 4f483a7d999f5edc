"""A shell inside `netram play`, into which a page's commands are typed, and the comparison of their output.

For root the shell has namespaces of its own: processes, mounts, network. In them this machine also has the
addresses 10.0.0.1 to 10.0.0.4, `/run` and `/dev/shm` are empty, and files that a page makes in `/srv`,
`/etc/netram` and so on go into the page's own directory. Everything that was started ends with the shell, and
with it mounts and devices.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from conftest import program

ROOT = Path(__file__).parents[2]
#: A command that takes longer hangs. The longest take some seconds on a busy machine of two cores.
COMMAND_S = 60.0
#: Then a page's processes are killed, even if the test was killed before.
PAGE_S = 240
#: How long processes and devices may take to go after the shell has ended.
END_S = 20.0
DONE = "typed-and-done"
#: Directories of the machine in whose place a page gets one of its own.
OWN = (
    "/dev/netram",
    "/etc/netram",
    "/etc/postgresql",
    "/srv",
    "/var/lib/netram",
    "/var/lib/postgresql",
    "/var/log/postgresql",
)
#: The first process of the namespaces. It stays, because a process must wait for orphans. Mounts of tests
#: beside this one are not kept busy by their copies here.
FIRST = r"""
set -e
awk -v kept="$KEPT" -v temporary="${TMPDIR:-/tmp}/" '
    ($2 ~ "^/(tmp|var/tmp|run/netns)/" || index($2, temporary) == 1) && !index(kept, ":" $2 "/") { print $2 }
' /proc/self/mounts | tac | while read -r place; do umount -l "$place" || :; done 2> /dev/null
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 1777 /run/lock
mount -t tmpfs tmpfs /dev/shm
for place in $PLACES; do
    mkdir -p "$place" "$PAGE/.own$place"
    chown --reference="$place" "$PAGE/.own$place"
    chmod --reference="$place" "$PAGE/.own$place"
    mount --bind "$PAGE/.own$place" "$place"
done
ip link set lo up
for machine in 1 2 3 4; do ip address add "10.0.0.$machine/32" dev lo; done
set +e
"$@"
exit $?
"""
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc")


class Step(NamedTuple):
    command: str
    #: The lines that the page shows below the command.
    expected: list[str]
    #: Whether the page types it as root.
    as_root: bool


def steps(text: str) -> list[Step]:
    """Commands of a page's console blocks."""
    found: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        lines = iter(block.splitlines())
        for line in lines:
            if line.startswith(("$ ", "# ")):
                command = line[2:]
                while command.endswith("\\"):
                    command += "\n" + next(lines)
                found.append(Step(command, [], line[0] == "#"))
            elif found:
                found[-1].expected.append(line)
    return found


def files(text: str) -> dict[str, str]:
    """Programs that a page shows, by the file's name in the line above."""
    return dict(re.findall(r"`([\w-]+\.py)`[^`\n]*\n\n```python\n(.*?)^```", text, re.M | re.S))


#: Their number is a page's promise, so it is compared. That of lenders may be less: the disk may be faster.
COUNTED = r" (?:copies|domains?|files?|bad blocks?|locks?|pages lost)\b"


def masked(line: str) -> str:
    """The line without what differs from one run to another: numbers, sizes, times, ids, places, devices.

    A line that is nothing but a number is a result, which does not differ."""
    if line.startswith("balances "):
        return re.sub(r"\d+$", "N", line)
    if re.fullmatch(r"\s*\d+", line):
        return line.strip()
    line = re.sub(r"\brule=(?:True|False)", "rule=R", line)
    line = re.sub(r"/(?:var/)?tmp/[\w./-]+", "/tmp/P", line)
    line = re.sub(r"/dev/(?:loop|ublkb|nbd)\d+", "/dev/D", line)
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,}\b", "H", line)
    line = re.sub(rf"\d[\d,._]*+(?:[eE]-?\d+)?+(?:\s?(?:ns|us|µs|ms|s|m|h|[KMGT]?i?B|%))?(?![a-zA-Z]|{COUNTED})", "N", line)
    # As in 1s 200ms.
    line = re.sub(r"\bN(?: N)+\b", "N", line)
    line = re.sub(r"\bN (record|transaction|range|block|write)s\b", r"N \1", line)
    return re.sub(r"[\s─-]+", " ", line).strip()


#: Logs differ by what the machine allows, and only a shell without a terminal names jobs that were killed.
ASIDE = re.compile(r"\d{4}-\d\d-\d\dT|\S*bash: line \d+: +\d+ (?:Killed|Terminated)\b|^\s*$")


def differs(expected: list[str], printed: list[str]) -> bool:
    """Whether the output is another one. `...` stands for any number of lines."""
    pattern = [masked(line) for line in expected if line.strip()]
    lines = [masked(line) for line in printed if not ASIDE.match(line)]

    def match(at: int, have: int) -> bool:
        if at == len(pattern):
            return have == len(lines)
        if pattern[at] == "...":
            return any(match(at + 1, later) for later in range(have, len(lines) + 1))
        return have < len(lines) and pattern[at] == lines[have] and match(at + 1, have + 1)

    return not match(0, 0)


class Shell:
    """A shell inside `netram play`, in a page's directory."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self.tools = directory / ".tools"
        self.tools.mkdir()
        built = Path(program()).parent
        for name, file in {
            "netram": "netram",
            "netram-lab": "netram-lab",
            "libnetram_sqlite.so": "libnetram_sqlite_extension.so",
        }.items():
            (self.tools / name).symlink_to(built / file)
        python = Path(sys.executable).parent
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NETRAM_")}
        environment |= {
            "PATH": f"{self.tools}:{python}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "SHELL": "/bin/bash",
            "HOME": str(directory),
            "LC_ALL": "C.UTF-8",
            "NETRAM_STATE_DIR": str(directory / ".state"),
        }
        command = [program(), "play"]
        if "netram run" not in text:
            # Pages of far memory take what is usual; the others leave more to the machine.
            command += ["--memory", "96MiB"]
        self.isolated = os.geteuid() == 0
        if self.isolated:
            command = [*ALONE, "bash", "-c", FIRST, "first", *command]
            kept = [ROOT, directory, built, Path(sys.prefix)]
            environment["KEPT"] = "".join(f":{path.resolve()}/" for path in kept)
            environment["PAGE"] = str(directory)
            # The machine gets no directory that the page does not need.
            needed = (place for place in OWN if place in text or Path(place).exists() or place == "/dev/netram")
            environment["PLACES"] = " ".join(needed)
        self.process = subprocess.Popen(
            ["timeout", "--signal=KILL", str(PAGE_S), *command],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        self.unread = b""
        #: Numbers that a test compares from one command to another.
        self.counts: list[int] = []
        #: What `netram play` printed before the first command.
        self.greeting: list[str] = []
        try:
            self.greeting, _ = self.type("true", [])
        except AssertionError:
            self.end()
            raise

    def line(self, until: float) -> str | None:
        """The next line of output. None: there was none in time."""
        assert self.process.stdout is not None
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise EOFError
            self.unread += more
        line, self.unread = self.unread.split(b"\n", 1)
        return line.decode(errors="replace")

    def type(self, command: str, expected: list[str]) -> tuple[list[str], int]:
        """Output and exit code of a command. One in the background has time to print what is expected."""
        assert self.process.stdin is not None
        until = time.monotonic() + COMMAND_S
        # Where `make install` puts it.
        text = command.replace("/usr/local/lib/netram/", f"{self.tools}/")
        printed: list[str] = []
        code = None
        try:
            # A command that reads gets nothing, rather than the next one.
            self.process.stdin.write(f"{{ {text}\n}} < /dev/null\nprintf '\\n%s %d\\n' {DONE} $?\n".encode())
            while code is None or (text.endswith("&") and differs(expected, printed)):
                line = self.line(until)
                if line is None:
                    break
                if line.startswith(DONE):
                    code = int(line.split()[1])
                else:
                    printed.append(line)
        except (EOFError, BrokenPipeError):
            raise AssertionError(f"the shell ended at `{command}`, which printed\n" + "\n".join(printed)) from None
        if code is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            so_far = "\n".join([*printed, self.unread.decode(errors="replace")])
            raise AssertionError(f"`{command}` did not end within {COMMAND_S:.0f} s. It printed so far\n{so_far}")
        return printed, code

    def end(self) -> None:
        """Ends everything that was started. Names what does not end."""
        devices = self.devices()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(END_S)
        self.process.stdout.close()
        if not self.isolated:
            self.kill_orphans()
        until = time.monotonic() + END_S
        while left := {device: file for device, file in devices.items() if backing(device) == file}:
            if time.monotonic() > until:
                subprocess.run(["losetup", "--detach", *left], check=False)
                raise AssertionError(f"devices were left: {left}")
            time.sleep(0.05)

    def devices(self) -> dict[str, str]:
        """Loop devices that the page has attached, with the file of each."""
        links = (self.directory / ".own/dev/netram").glob("*")
        targets = ["/dev/" + os.path.basename(os.readlink(link)) for link in links]
        return {device: file for device in targets if (file := backing(device))}

    def kill_orphans(self) -> None:
        """Kills what has left the shell's session, and is known by its environment."""
        mark = f"NETRAM_STATE_DIR={self.directory}/".encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
            except OSError:
                continue


def backing(device: str) -> str:
    """The file of a loop device, or nothing."""
    try:
        return Path("/sys/block", os.path.basename(device), "loop/backing_file").read_text().strip()
    except OSError:
        return ""


def remove(directory: Path) -> None:
    """Removes a page's directory. A directory whose mount is gone is immutable until it is recovered."""
    if os.geteuid() == 0:
        subprocess.run(["chattr", "-R", "-f", "-i", directory], check=False)
    shutil.rmtree(directory)
