"""Azurite, the Azure Storage emulator: one server a test session, on free loopback ports, in memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

# Ends with its standard input, so it never outlives the tests, however they end.
_SERVER = "process.stdin.resume().on('end', () => process.exit(0)); require(process.argv[1])"
INFRA = Path(__file__).parent.parent / "infra"
_READY = re.compile(r"Azurite (\w+) service is successfully listening at http://127\.0\.0\.1:(\d+)")


class Azurite(NamedTuple):
    blob_port: int
    table_port: int

    def url(self, prefix: str = "streamkit") -> str:
        """The store URL of `prefix`, under which there are stores."""
        return f"azurite:///{prefix}?blob_port={self.blob_port}&table_port={self.table_port}"


def _ports(server: subprocess.Popen[str]) -> dict[str, int]:
    """The port of each service, once all three listen. Otherwise RuntimeError with the output of the program."""
    assert server.stdout is not None
    ports: dict[str, int] = {}
    printed: list[str] = []
    for line in server.stdout:
        printed.append(line)
        if found := _READY.search(line):
            ports[found[1]] = int(found[2])
        if len(ports) == 3:
            return ports
    raise RuntimeError(f"Azurite ended before it listened:\n{''.join(printed)}")


def _drain(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    for _ in server.stdout:
        pass


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """A running Azurite. Installs it at the first use, if `make` has not."""
    install = [sys.executable, str(INFRA / "npm.py"), str(INFRA / "azurite")]
    node, modules = subprocess.run(install, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")[:2]
    script = f"{modules}/azurite/dist/src/azurite.js"
    flags = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    for service in ("blob", "queue", "table"):
        flags += [f"--{service}Host", "127.0.0.1", f"--{service}Port", "0"]
        flags += [f"--{service}KeepAliveTimeout", "600"]  # it may not hang up on a machine that is busy for 5 seconds
    server = subprocess.Popen(
        [node, "-e", _SERVER, script, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with server:
        ports = _ports(server)
        drain = Thread(target=_drain, args=(server,), daemon=True)
        drain.start()
        yield Azurite(ports["Blob"], ports["Table"])
        server.kill()  # gracefully, it would wait for the clients to hang up
        assert server.stdin is not None
        server.stdin.close()  # ends it also where what was killed is another program that had started Node
        drain.join(10)
