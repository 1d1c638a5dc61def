"""The Spark session: registering the source, and clear words where Spark cannot start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_java", "register", "session"]

_JAVA = 17


def register(spark: SparkSession) -> None:
    """Make `format("streamkit")` known to a session. None of its settings is changed.

    A second call does nothing. Spark before 4.0 has no such sources: there the call does nothing, and jobs that do not
    need the source run all the same.
    """
    if int(spark.version.split(".")[0]) < 4:
        return
    from .source import StreamkitSource

    spark.dataSource.register(StreamkitSource)


def session(app: str = "streamkit", **settings: str) -> SparkSession:
    """The active session, or a new one, with the source registered. MissingDependency without pyspark or Java.

    Without SPARK_REMOTE or spark-submit, it runs in this process on all cores.
    """
    if find_spec("pyspark") is None:
        raise MissingDependency("Spark is not installed: pip install 'streamkit-store[spark]'")
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        check_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(app).config("spark.sql.session.timeZone", "UTC")
        for name, value in settings.items():
            builder = builder.config(name.replace("__", "."), value)
        active = builder.getOrCreate()
    register(active)
    return active


def check_java() -> None:
    """Raise MissingDependency if there is no Java, or one that Spark 4 does not run on."""
    if os.environ.get("SPARK_REMOTE"):
        return
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, which holds none" if home else "none is on the PATH"
        raise MissingDependency(f"Spark needs Java {_JAVA} or newer, and {where}: install a JRE, or set JAVA_HOME")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    version = int(found[2] if found[1] == "1" and found[2] else found[1]) if found else None
    if version is not None and version < _JAVA:
        raise MissingDependency(f"Spark 4 needs Java {_JAVA} or newer; {java} is Java {version}. Set JAVA_HOME")
