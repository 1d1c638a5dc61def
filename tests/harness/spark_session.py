"""The Spark of the tests, which infra/spark/classes.py starts too: the classes that it keeps are of the same JVM."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CONNECTORS", "JVM_FLAGS", "small_session"]

CONNECTORS = Path(sys.prefix) / "connectors"
"""The folder in which infra/spark/connectors.py puts the jars for s3a://."""
JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""Options of a JVM that starts fast and does not live long."""
_WORKERS = str(Path(__file__).parents[1] / "spark_workers")


def small_session(java_options: str, **settings: str) -> Any:
    """A session on loopback with two threads."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with pytest.MonkeyPatch.context() as patch:
        # The JVM gives its path to its Python processes.
        patch.setenv("PYTHONPATH", _WORKERS, prepend=os.pathsep)
        found = _session(java_options, **settings)
    found.sparkContext.setLogLevel("OFF")
    return found


def _session(java_options: str, **settings: str) -> Any:
    from streamkit.spark import session

    return session(
        spark__master="local[2]",
        spark__python__daemon__module="spark_daemon",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__sql__shuffle__partitions="2",
        spark__driver__extraClassPath=f"{CONNECTORS}/*",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__driver__extraJavaOptions=java_options,
        **settings,
    )
