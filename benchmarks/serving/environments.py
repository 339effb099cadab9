"""One virtual environment per peer, installed with pip and kept in the benchmark's cache folder."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.serving.servers import Server


class InstallError(Exception):
    """A peer could not be installed; the message says why."""


def python_of(server: Server, cache: Path) -> Path:
    """The interpreter of a server. Creates its environment if that is missing or holds other packages."""
    if not server.packages:
        return Path(sys.executable)
    folder = cache / "envs" / server.name.lower().replace(" ", "-")
    python, done = folder / "bin" / "python", folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == list(server.packages):
        return python.absolute()
    print(f"installing {server.name}: {' '.join(server.packages)}", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *server.packages],
        ):
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise InstallError(f"pip could not install {server.name}: {''.join(last)} (full log: {log})")
    done.write_text(json.dumps(list(server.packages)))
    return python.absolute()


def versions(python: Path) -> dict[str, str]:
    """The versions of the packages in an interpreter's environment, by name."""
    command = [str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {package["name"].lower(): package["version"] for package in listed}
