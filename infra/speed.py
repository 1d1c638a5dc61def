"""Build and install the compiled twin, `speed/`, where Rust is installed and its crates can be fetched.

    python infra/speed.py

Without it everything works, and one line says why it is missing. The exit code is 0 in both cases. The stamp is written
by success alone, so that the next `make` tries again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAMP = ROOT / ".venv" / "speed.stamp"
SECONDS = 900


def cargo() -> Path | None:
    """Cargo, also where the shell's path does not have it."""
    found = shutil.which("cargo") or shutil.which(Path.home() / ".cargo" / "bin" / "cargo")
    return Path(found) if found else None


def build() -> str:
    """Install the twin into this Python's environment, and return why it is missing: empty if it is there."""
    tool = cargo()
    if tool is None:
        return "cargo is not installed"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "there is no C compiler"
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(tool.parent), os.environ.get("PATH", ""))),
        "CARGO_TARGET_DIR": str(ROOT / "build" / "speed"),
        "CARGO_NET_RETRY": "1",
    }
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--force-reinstall", "--no-cache-dir", str(ROOT / "speed")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"its build took more than {SECONDS} s"
    if done.returncode:
        log = ROOT / "build" / "speed.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(done.stdout + done.stderr)
        return f"its build failed, see {log.relative_to(ROOT)}"
    return ""


def main() -> None:
    missing = build()
    if missing:
        print(f"make: the compiled twin is missing ({missing}); the Python codec does the work")
    else:
        STAMP.touch()


if __name__ == "__main__":
    main()
