"""A server as a process with its descendants: CPU time and memory from /proc, suspending, and a clean end."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
RESUME_SECONDS = 0.3


def family(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                children.setdefault(int(_fields(int(entry.name))[1]), []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of a process and its descendants, including those that have ended."""
    total = 0
    for process in family(root):
        with contextlib.suppress(OSError):
            total += sum(int(ticks) for ticks in _fields(process)[11:15])
    return total / TICKS


def resident_bytes(root: int) -> int:
    """Resident memory of a process and its descendants."""
    total = 0
    for process in family(root):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
    return total


def pss_bytes(root: int) -> int:
    """Memory of a process and its descendants; what several of them share is counted once (proportional set size)."""
    total = 0
    for process in family(root):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def busy_share(seconds: float = 2.0) -> float:
    """The share of all CPUs in use right now: on a busy machine a benchmark measures the other programs."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    before = ticks()
    time.sleep(seconds)
    total, idle = (after - then for after, then in zip(ticks(), before, strict=True))
    return 1 - idle / max(1, total)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _fields(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may contain any character."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()


@contextlib.contextmanager
def running(command: list[str], env: Mapping[str, str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command in a session of its own, and ends every process of that session afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process)


def suspend(root: int) -> None:
    """Stops a process and its descendants with SIGSTOP until they are `resumed`.

    Some servers poll for work while they are idle, and would take a core from the one that is measured.
    """
    _signal_all(root, signal.SIGSTOP)


@contextlib.contextmanager
def resumed(root: int) -> Iterator[None]:
    """A suspended process and its descendants run inside this block."""
    _signal_all(root, signal.SIGCONT)
    time.sleep(RESUME_SECONDS)
    try:
        yield
    finally:
        suspend(root)


def _signal_all(root: int, sign: signal.Signals) -> None:
    for process in family(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, sign)


def _end(process: subprocess.Popen[bytes]) -> None:
    everybody = family(process.pid)
    _signal_all(process.pid, signal.SIGCONT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    time.sleep(0.2)
    for survivor in everybody:
        with contextlib.suppress(ProcessLookupError):
            os.kill(survivor, signal.SIGKILL)
    process.wait()
