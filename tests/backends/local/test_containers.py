"""Containers that share a volume: processes with equal numbers, and clocks of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fix_local import _PROGRAM, Append, LocalStore, P, Put, write

_KEEP = """
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Container:
    """A Python process in namespaces of its own, in which `b` is the store's backend."""

    def __init__(self, local: LocalStore, *options: str) -> None:
        outside = ["unshare", "--fork", "--kill-child", *options]
        self.process = subprocess.Popen(
            [*outside, sys.executable, "-c", _PROGRAM + _KEEP, str(local.root), str(local.id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n", self.process.communicate()[1]


@pytest.fixture
def containers(local: LocalStore, request: pytest.FixtureRequest) -> Iterator[list[Container]]:
    options = request.param
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    if subprocess.run(["unshare", "--fork", *options[0], "true"], capture_output=True).returncode:
        pytest.skip("making namespaces is not permitted here")
    made = [Container(local, *each) for each in options]
    yield made
    for container in made:
        container.process.kill()
        container.process.communicate()


@pytest.mark.parametrize("containers", [[["--pid"]] * 2], indirect=True)
def test_processes_with_the_same_number_write_to_one_store(local: LocalStore, containers: list[Container]) -> None:
    one, two = containers
    one.run("assert os.getpid() == 1; b.put(P, b'1', b'x', NEXT); b.put(P, b'row', b'x')")
    two.run("assert os.getpid() == 1; assert b.get(P, [b'row'])[0].data == b'x'")
    two.run("b.put(P, b'2', b'x', NEXT); b.put(P, b'row', b'y')")
    one.run("b.put(P, b'3', b'x', NEXT); assert b.get(P, [b'row'])[0].data == b'y'; b.close()")
    two.run("b.put(P, b'4', b'x', NEXT)")
    assert local.rows() == {b"1": b"x", b"2": b"x", b"3": b"x", b"4": b"x", b"row": b"y"}


@pytest.mark.parametrize(
    "containers", [[["--time", "--boottime", "1000000"], ["--time", "--boottime", "5"]]], indirect=True
)
def test_a_lease_has_one_holder_though_the_clocks_differ(local: LocalStore, containers: list[Container]) -> None:
    write(local.backend, P, [Append(b"1", b""), Put(b"row", b"")])
    grant = local.backend.acquire("leader", 1000)
    assert grant is not None
    for container in containers:
        container.run("assert b.acquire('leader', 1000) is None")
    local.backend.release(local.backend.renew(grant))
    containers[0].run(f"grant = b.acquire('leader', 1000); assert grant.token == {grant.token + 1}")
    containers[1].run("assert b.acquire('leader', 1000) is None")
    assert local.backend.acquire("leader", 1000) is None
    containers[0].run("b.release(grant)")
    containers[1].run(f"assert b.acquire('leader', 1000).token == {grant.token + 2}")
