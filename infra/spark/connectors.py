"""Fetch the jars that connectors.xml names, and print the folder that they are in.

    python infra/spark/connectors.py

Spark's own reader needs them for s3a://. They come from Maven, by the Ivy that PySpark brings along, so Java is all
that must be there; they are kept in the environment (`<sys.prefix>/connectors`). Does nothing when they are there.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

WANTED = Path(__file__).resolve().parent / "connectors.xml"
FOLDER = Path(sys.prefix) / "connectors"
ATTEMPTS = 3


def installed() -> bool:
    """True if the folder has all files of the list."""
    try:
        return (FOLDER / "list").read_text() == sha256(WANTED.read_bytes()).hexdigest()
    except FileNotFoundError:
        return False


def install() -> None:
    """SystemExit with Ivy's output if they cannot be fetched."""
    with WANTED.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may start at once
        if installed():
            return
        shutil.rmtree(FOLDER, ignore_errors=True)
        with tempfile.TemporaryDirectory() as cache:
            pattern = f"{FOLDER}/[artifact]-[revision].[ext]"
            command = [java(), "-jar", str(ivy()), "-ivy", str(WANTED), "-cache", cache, "-retrieve", pattern]
            for _ in range(ATTEMPTS):
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if done.returncode == 0:
                    break
            else:
                raise SystemExit(f"{done.stdout[-2000:]}\nthe jars of {WANTED} could not be fetched from Maven")
        (FOLDER / "list").write_text(sha256(WANTED.read_bytes()).hexdigest())


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"


def ivy() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise SystemExit("PySpark brings what fetches them: pip install 'streamkit-store[spark]'")
    return next((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))


if __name__ == "__main__":
    if not installed():
        install()
    print(FOLDER)
