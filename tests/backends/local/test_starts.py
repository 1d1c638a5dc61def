"""A system that does not tell which start of the machine this is: nothing can be told about the files either."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from fix_local import Append, LocalStore, P, write

from streamkit.errors import PermanentError, Unavailable
from streamkit_local.clock import boot_id

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class System:
    """Answers `code` when it is asked for the boot id, or tells `told`; None: as it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code: int | None = None
        self.told: str | None = None
        real = open

        def opened(name: Any, *args: Any, **options: Any) -> Any:
            if name == _BOOT_ID and self.code is not None:
                raise OSError(self.code, os.strerror(self.code))
            if name == _BOOT_ID and self.told is not None:
                return real(os.devnull, *args, **options) if not self.told else _Told(self.told)
            return real(name, *args, **options)

        def ran(*_: Any, **__: Any) -> Any:
            raise FileNotFoundError(errno.ENOENT, "sysctl")

        monkeypatch.setattr(builtins, "open", opened)
        monkeypatch.setattr(subprocess, "run", ran)


class _Told:
    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> _Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> str:
        return self.text


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    boot_id.cache_clear()
    yield System(monkeypatch)
    boot_id.cache_clear()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES])
def test_without_a_boot_id_every_use_is_one_clear_error_and_nothing_is_written(
    local: LocalStore, system: System, code: int
) -> None:
    system.code = code
    for call in (
        lambda: write(local.backend, P, [Append(b"1", b"x")]),
        lambda: local.backend.acquire("leader", 5),
        lambda: local.backend.get(P, [b"1"]),
        lambda: list(local.backend.scan(P, b"", b"\xff")),
    ):
        with pytest.raises(PermanentError, match=f"does not tell when it was started .{_BOOT_ID}.*mount /proc"):
            call()
    assert not local.root.exists()


@pytest.mark.parametrize("told", ["", "not a uuid", "00000000-0000-0000-0000-000000000000"])
def test_a_boot_id_that_is_none_is_no_boot_id(local: LocalStore, system: System, told: str) -> None:
    system.told = told
    with pytest.raises(PermanentError, match="does not tell when it was started"):
        write(local.backend, P, [Append(b"1", b"x")])
    assert not local.root.exists()


def test_a_store_that_is_there_is_left_as_it_is_without_a_boot_id(local: LocalStore, system: System) -> None:
    write(local.backend, P, [Append(b"1", b"x")])
    local.open()
    before = {path: path.read_bytes() for path in local.files()}
    boot_id.cache_clear()
    system.code = errno.ENOENT
    for _ in range(2):
        with pytest.raises(PermanentError, match="does not tell"):
            local.open().get(P, [b"1"])
    assert {path: path.read_bytes() for path in local.files()} == before
    system.code = None
    assert local.rows_anew() == {b"1": b"x"}


def test_a_boot_id_that_cannot_be_read_for_want_of_descriptors_is_asked_for_again(
    local: LocalStore, system: System
) -> None:
    system.code = errno.EMFILE
    with pytest.raises(Unavailable, match="too many open files"):
        write(local.backend, P, [Append(b"1", b"x")])
    system.code = None
    write(local.backend, P, [Append(b"1", b"x")])
    assert local.rows() == {b"1": b"x"}
