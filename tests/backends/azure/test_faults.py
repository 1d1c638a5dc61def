"""Faults of the network and of Azure at the seam: proxies between the real SDK and Azurite."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_proxy import (
    CUT_BODY,
    DROP_ANSWER,
    DROP_REQUEST,
    DUPLICATE,
    LATE,
    PASS,
    SILENT,
    SILENT_ANSWER,
    Fault,
    Proxy,
    Request,
    relabel,
    status,
)

import streamkit_azure
from harness.certificates import sign_itself
from streamkit.backend import ABSENT, ANY, NEXT, Ambiguous, Backend, Conflict, Expect, Grant, Range
from streamkit.errors import (
    AccessDenied,
    LeaseLost,
    PermanentError,
    StreamkitError,
    Throttled,
    Unavailable,
)
from streamkit_azure.driver import AzureDriver

pytestmark = pytest.mark.azure

PARTITION = b"orders\x00" + bytes(8)
LARGE = bytes(1 << 20)
LOST = [DROP_REQUEST, DROP_ANSWER, CUT_BODY]


def answer(code: int, name: str, headers: dict[str, str] | None = None) -> Fault:
    """The refusal of either service: its name is in a header, and in a body of its own kind."""
    body = json.dumps({"odata.error": {"code": name, "message": {"lang": "en-US", "value": "?sig=hidden"}}})
    return status(code, body.encode(), {"x-ms-error-code": name, "Content-Type": "application/json"} | (headers or {}))


def is_write(request: Request) -> bool:
    return request.method in ("POST", "PUT", "DELETE") and "/Tables" not in request.target


class Setting:
    """A store behind two proxies, one a service, and the same one past them."""

    def __init__(self, azurite: Azurite, make_proxy: Callable[[str, int], Proxy]) -> None:
        self.tables = make_proxy("127.0.0.1", azurite.table_port)
        self.blobs = make_proxy("127.0.0.1", azurite.blob_port)
        self.id = uuid4()
        self.url = Azurite(self.blobs.port, self.tables.port).url("faults")
        self.driver = streamkit_azure.connect(self.url, timeout=30)
        self.store: Backend = self.driver.open(self.id)
        self.past = streamkit_azure.connect(azurite.url("faults"), timeout=30)
        self.direct: Backend = self.past.open(self.id)
        self.direct.put(PARTITION, b"first", b"row")
        self.direct.put(PARTITION, b"large", LARGE)

    def row(self, key: bytes = b"a") -> bytes | None:
        found = self.direct.get(PARTITION, [key])[0]
        return found.data if found else None


@pytest.fixture
def setting(azurite: Azurite, make_proxy: Callable[[str, int], Proxy]) -> Iterator[Setting]:
    setting = Setting(azurite, make_proxy)
    yield setting
    setting.past.delete(setting.id)
    setting.past.close()
    setting.driver.close()


def write(store: Backend) -> object:
    return store.put(PARTITION, b"a", b"1", NEXT)


READS: dict[str, Callable[[Backend], object]] = {
    "get": lambda store: store.get(PARTITION, [b"first"]),
    "several": lambda store: store.get(PARTITION, [b"first", b"second", b"third"]),
    "read": lambda store: store.read(PARTITION, [Range(b"first", 1, 1)]),
    "scan": lambda store: list(store.scan(PARTITION, b"", b"\xff")),
}


class TestAnswers:
    """The result or error for each answer of the service."""

    @pytest.mark.parametrize("expect", [NEXT, ANY, "etag"], ids=str)
    @pytest.mark.parametrize(
        ("code", "name", "expected"),
        [
            (429, "TooManyRequests", Throttled),
            (503, "ServerBusy", Throttled),
            (503, "OperationTimedOut", Ambiguous),
            (503, "", Ambiguous),
            (500, "OperationTimedOut", Ambiguous),
            (500, "InternalError", Ambiguous),
            (502, "", Ambiguous),
            (504, "", Ambiguous),
            (401, "InvalidAuthenticationInfo", AccessDenied),
            (403, "AuthorizationPermissionMismatch", AccessDenied),
            (403, "AuthenticationFailed", AccessDenied),
            (409, "TableBeingDeleted", Unavailable),
            (412, "UpdateConditionNotSatisfied", Conflict),
            (409, "EntityAlreadyExists", Conflict),
            (404, "ResourceNotFound", Conflict),
            (400, "InvalidInput", PermanentError),
            (413, "RequestBodyTooLarge", PermanentError),
            (404, "", PermanentError),
        ],
    )
    def test_to_a_write(
        self,
        setting: Setting,
        code: int,
        name: str,
        expected: type[StreamkitError],
        expect: Expect | str,
    ) -> None:
        if expect == "etag":
            expect = setting.direct.put(PARTITION, b"a", b"0")
        elif code == 404 and name:
            expected = PermanentError  # there is nothing that it could miss
        setting.tables.once(answer(code, name), is_write)
        with pytest.raises(StreamkitError) as raised:
            setting.store.put(PARTITION, b"a", b"1", expect)
        assert type(raised.value) is expected
        setting.store.put(PARTITION, b"a", b"1", expect)
        assert setting.row() == b"1", "work goes on when the cause is gone"

    def test_to_a_write_that_is_made_while_an_error_is_handled(self, setting: Setting) -> None:
        """An earlier failure is no cause of this one, although Python makes it the context."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        nowhere = streamkit_azure.connect(Azurite(port, port).url("faults"), timeout=30)
        try:
            write(nowhere.open(setting.id))
        except Unavailable:
            setting.tables.once(DROP_ANSWER, is_write)
            with pytest.raises(Ambiguous):
                write(setting.store)
        else:
            pytest.fail("nobody listens there")
        finally:
            nowhere.close()
        assert setting.row() == b"1"

    @pytest.mark.parametrize("read", READS.values(), ids=READS)
    @pytest.mark.parametrize(
        ("code", "name", "expected"),
        [
            (429, "TooManyRequests", Throttled),
            (503, "ServerBusy", Throttled),
            (503, "OperationTimedOut", Throttled),
            (500, "OperationTimedOut", Unavailable),
            (502, "", Unavailable),
            (403, "AuthorizationPermissionMismatch", AccessDenied),
            (404, "", PermanentError),
            (400, "InvalidInput", PermanentError),
        ],
    )
    def test_to_a_read(
        self,
        setting: Setting,
        code: int,
        name: str,
        expected: type[StreamkitError],
        read: Callable[[Backend], object],
    ) -> None:
        setting.tables.once(answer(code, name))
        with pytest.raises(StreamkitError) as raised:
            read(setting.store)
        assert type(raised.value) is expected
        read(setting.store)

    @pytest.mark.parametrize(
        ("code", "name", "expected"),
        [
            (503, "ServerBusy", Throttled),
            (500, "InternalError", Unavailable),
            (409, "ContainerBeingDeleted", Unavailable),
            (403, "AuthorizationPermissionMismatch", AccessDenied),
        ],
    )
    def test_about_a_blob_never_leave_it_open_whether_the_row_is_there(
        self, setting: Setting, code: int, name: str, expected: type[StreamkitError]
    ) -> None:
        large: list[Callable[[], object]] = [
            lambda: setting.store.put(PARTITION, b"a", LARGE, ABSENT),
            lambda: setting.store.get(PARTITION, [b"large"]),
            lambda: setting.store.read(PARTITION, [Range(b"large", 10, 10)]),
        ]
        for call in large:
            setting.blobs.once(answer(code, name))
            with pytest.raises(StreamkitError) as raised:
                call()
            assert type(raised.value) is expected
            assert setting.row() is None
        for call in large:
            call()

    def test_a_page_that_fails_ends_no_scan(self, setting: Setting) -> None:
        for at in range(25):
            setting.direct.put(PARTITION, b"n%04d" % at, b"x")
        setting.tables.plan = [PASS, answer(503, "ServerBusy")]
        rows = AzureDriver(setting.url, timeout=30, page=20).open(setting.id).scan(PARTITION, b"n", b"o")
        assert [next(rows).key for _ in range(20)] == [b"n%04d" % at for at in range(20)]
        with pytest.raises(Throttled):
            next(rows)

    @pytest.mark.parametrize("code", [200, 202])
    @pytest.mark.parametrize("kind", ["application/json", "multipart/mixed; boundary=b", "text/html", ""])
    @pytest.mark.parametrize(
        "body",
        [b"", b"{}", b"null", b"[1]", b"<html>", b'{"value": 5}', b'{"value": [5]}', b"--b\r\n\r\n\xff\r\n--b--"],
    )
    def test_that_are_none_of_azures_let_no_foreign_exception_out(
        self, setting: Setting, code: int, kind: str, body: bytes
    ) -> None:
        fault = status(code, body, {"Content-Type": kind} if kind else {})
        setting.tables.once(fault, is_write)
        with pytest.raises(Ambiguous):
            write(setting.store)
        for call in (*READS.values(), lambda store: list(setting.driver.stores())):
            setting.tables.plan = lambda request: fault
            with suppress(StreamkitError):
                call(setting.store)
        setting.tables.plan = []
        for large in (
            lambda: setting.store.get(PARTITION, [b"large"]),
            lambda: setting.store.put(PARTITION, b"b", LARGE),
            lambda: setting.store.acquire("leader", 5),
            lambda: setting.store.acquire("leader", 30),
            lambda: setting.driver.delete(uuid4()),
        ):
            setting.blobs.plan = lambda request: fault
            with suppress(StreamkitError):
                large()
        setting.blobs.plan = []

    def test_a_wrong_clock_is_named_where_the_signature_is_refused(self, setting: Setting) -> None:
        for seconds, says in ((3600, "behind"), (-3600, "ahead of")):
            date = {"Date": formatdate(time.time() + seconds, usegmt=True)}
            setting.tables.once(answer(403, "AuthenticationFailed", date))
            with pytest.raises(AccessDenied, match=f"clock is 3[56].. s {says} the service's"):
                setting.store.get(PARTITION, [b"a"])


class TestLostAnswers:
    """A write that may have been applied is never called anything else."""

    @pytest.mark.parametrize("fault", LOST)
    def test_to_a_write_are_ambiguous(self, setting: Setting, fault: Fault) -> None:
        setting.tables.once(fault, is_write)
        with pytest.raises(Ambiguous):
            write(setting.store)
        assert setting.row() == (None if fault is DROP_REQUEST else b"1")
        assert sum(map(is_write, setting.tables.seen)) == 1, "nobody sent it again"

    @pytest.mark.parametrize("fault", [SILENT, SILENT_ANSWER])
    def test_that_never_come_are_given_up(self, setting: Setting, fault: Fault) -> None:
        setting.tables.once(fault, is_write)
        impatient = streamkit_azure.connect(setting.url, timeout=6)
        with pytest.raises(Ambiguous):
            write(impatient.open(setting.id))
        impatient.close()
        assert setting.row() == (None if fault is SILENT else b"1")

    def test_to_a_request_that_arrives_late(self, setting: Setting) -> None:
        setting.tables.once(LATE, is_write)
        with pytest.raises(Ambiguous):
            write(setting.store)
        assert setting.row() is None
        setting.direct.put(PARTITION, b"a", b"another's", NEXT)
        setting.tables.deliver()
        assert setting.row() == b"another's"

    def test_to_the_first_of_two_copies_meet_ones_own_write(self, setting: Setting) -> None:
        setting.tables.once(DUPLICATE, is_write)
        with pytest.raises(Conflict):
            setting.store.put(PARTITION, b"a", LARGE, NEXT)
        assert setting.row() == LARGE, "the blob that the first copy refers to is still there"

    def test_to_the_first_of_two_copies_of_a_removal(self, setting: Setting) -> None:
        setting.tables.once(DUPLICATE, is_write)
        setting.store.delete(PARTITION, [b"first", b"large"])
        assert setting.row(b"first") is None

    @pytest.mark.parametrize("read", READS.values(), ids=READS)
    @pytest.mark.parametrize("fault", LOST)
    def test_to_a_read_are_unavailable(self, setting: Setting, fault: Fault, read: Callable[[Backend], object]) -> None:
        setting.tables.once(fault)
        with pytest.raises(Unavailable):
            read(setting.store)
        read(setting.store)

    @pytest.mark.parametrize("fault", LOST)
    def test_about_a_blob_are_unavailable(self, setting: Setting, fault: Fault) -> None:
        for call in (
            lambda: setting.store.put(PARTITION, b"a", LARGE, NEXT),
            lambda: setting.store.get(PARTITION, [b"large"]),
        ):
            setting.blobs.once(fault)
            with pytest.raises(Unavailable):
                call()
            assert setting.row() is None
        setting.store.put(PARTITION, b"a", LARGE, NEXT)

    @pytest.mark.parametrize("fault", [*LOST, DUPLICATE])
    def test_to_the_making_of_a_table_lose_nothing(self, setting: Setting, fault: Fault) -> None:
        store = setting.driver.open(uuid4())
        setting.tables.once(fault, lambda request: request.target.endswith("/Tables"))
        if fault is not DUPLICATE:
            with pytest.raises(Unavailable):
                write(store)
        write(store)
        assert store.get(PARTITION, [b"a"])[0] is not None

    def test_nobody_listens(self, setting: Setting) -> None:
        setting.tables.close()
        for call in (partial(write, setting.store), *(partial(read, setting.store) for read in READS.values())):
            with pytest.raises(Unavailable, match="no connection to http://127"):
                call()

    def test_no_host_of_the_name(self) -> None:
        driver = streamkit_azure.connect("azurite:///faults?host=nobody.invalid", timeout=3)
        with pytest.raises(Unavailable, match=r"nobody\.invalid.* was not found: check the account's name"):
            write(driver.open(uuid4()))
        driver.close()

    def test_connections_that_were_idle_for_a_minute_are_not_used_again(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            setting.store.get(PARTITION, [b"first"])
        assert setting.tables.connections == 1
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 61)
        setting.store.get(PARTITION, [b"first"])
        assert setting.tables.connections == 2


TTLS = [5.0, 30.0]
"""A ttl by the blob's age, and one of a native lease."""


class TestLeases:
    @pytest.mark.parametrize("ttl", TTLS)
    @pytest.mark.parametrize("fault", [*LOST, DUPLICATE, answer(503, "ServerBusy")])
    def test_lost_answers_never_make_two_holders_nor_a_token_twice(
        self, setting: Setting, fault: Fault, ttl: float
    ) -> None:
        for at in range(8):
            name = f"{fault.kind} {ttl} {at}"
            setting.blobs.plan = [*[PASS] * at, fault]
            grant = self.taken(setting.store, name, ttl)
            setting.blobs.plan = []
            rival = setting.direct.acquire(name, ttl)
            assert grant is None or rival is None
            held = grant or rival or self.taken(setting.direct, name, ttl, again=20)
            assert held is not None, "nobody holds it, and nobody can take it"
            setting.blobs.plan = [fault]
            held = self.renewed(setting.store, held)
            setting.blobs.plan = [fault]
            self.released(setting.store, held)
            following = setting.direct.acquire(name, ttl)
            assert following is not None
            assert following.token > held.token

    def taken(self, store: Backend, name: str, ttl: float, again: int = 1) -> Grant | None:
        for _ in range(again):
            try:
                grant = store.acquire(name, ttl)
            except (Unavailable, Throttled):
                continue
            if grant is not None:
                return grant
        return None

    def renewed(self, store: Backend, grant: Grant) -> Grant:
        try:
            return store.renew(grant)
        except (Unavailable, Throttled):
            return store.renew(grant)

    def released(self, store: Backend, grant: Grant) -> None:
        try:
            store.release(grant)
        except (Unavailable, Throttled):
            store.release(grant)

    def test_a_short_lease_ends_by_the_clock_of_the_service_and_no_other(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time
        begun = now()
        first = setting.direct.acquire("leader", 5.0)
        assert first is not None
        for skew in (-3600, 3600):
            monkeypatch.setattr(time, "time", lambda skew=skew: now() + skew)
            assert setting.direct.acquire("leader", 5.0) is None
        monkeypatch.undo()
        setting.blobs.plan = lambda request: relabel({"Date": formatdate(begun + 4, usegmt=True)})
        assert setting.store.acquire("leader", 5.0) is None
        setting.blobs.plan = lambda request: relabel({"Date": formatdate(begun + 60, usegmt=True)})
        second = setting.store.acquire("leader", 5.0)
        assert second is not None
        assert second.token == first.token + 1
        with pytest.raises(LeaseLost):
            setting.direct.renew(first)

    def test_a_native_lease_ends_when_azure_says_so(self, setting: Setting) -> None:
        assert setting.direct.acquire("leader", 30.0) is not None
        setting.blobs.plan = lambda request: relabel({"Date": formatdate(time.time() + 3600, usegmt=True)})
        assert setting.store.acquire("leader", 30.0) is None
        assert setting.store.acquire("leader", 5.0) is None

    def test_no_part_of_a_leases_path_is_longer_than_files_names_are(self, setting: Setting) -> None:
        names = ["a" * size for size in (1, 150, 156, 157, 158, 255, 270, 600)] + ["b" * 270]
        grants = [setting.store.acquire(name, 5.0) for name in names]
        assert None not in grants
        assert [setting.direct.acquire(name, 5.0) for name in names] == [None] * len(names)
        blobs = list(setting.past._clients(setting.id).container.list_blob_names(name_starts_with=f"{setting.id}/"))
        assert len({blob for blob in blobs if "/leases/" in blob}) == len(names)
        assert max(len(part) for blob in blobs for part in blob.split("/")) <= 255

    @pytest.mark.parametrize("ttl", TTLS)
    def test_tokens_grow_also_after_somebody_deleted_the_lease(self, setting: Setting, ttl: float) -> None:
        last, now = 0, time.time
        for turn in range(3):
            setting.blobs.plan = lambda request, turn=turn: relabel({"Date": formatdate(now() + turn, usegmt=True)})
            for _ in range(3):
                grant = setting.store.acquire("leader", ttl)
                assert grant is not None
                assert grant.token > last
                last = grant.token
                setting.store.release(grant)
            container = setting.past._clients(setting.id).container
            (blob,) = container.list_blob_names(name_starts_with=f"{setting.id}/leases/")
            container.delete_blob(blob)

    def test_leases_of_any_length_follow_each_other(self, setting: Setting) -> None:
        last: int | None = None
        for ttl in (5.0, 30.0, 1.0, 120.0, 15.0, 60.0, 14.9, 3600.0):
            grant = setting.store.acquire("leader", ttl)
            assert grant is not None
            assert last is None or grant.token == last + 1
            assert setting.direct.acquire("leader", 30.0) is None
            assert setting.direct.acquire("leader", 5.0) is None
            last = grant.token
            setting.store.release(setting.store.renew(grant))


class TestCredentials:
    @pytest.fixture
    def signed(self, azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], str]:
        """Sets a SAS connection string that is good for some seconds; returns what must stay secret in it."""
        from azure.storage.blob import generate_account_sas

        from streamkit_azure.account import _EMULATOR_KEY

        def sign(seconds: float) -> str:
            now = datetime.now(UTC)
            sas = generate_account_sas(
                "devstoreaccount1",
                _EMULATOR_KEY,
                "sco",
                "rwdlacup",
                now + timedelta(seconds=seconds),
                now - timedelta(days=1),
                services="bt",
            )
            host = "http://127.0.0.1"
            monkeypatch.setenv(
                "AZURITE_CONNECTION_STRING",
                f"BlobEndpoint={host}:{azurite.blob_port}/devstoreaccount1;"
                f"TableEndpoint={host}:{azurite.table_port}/devstoreaccount1;SharedAccessSignature={sas}",
            )
            return sas.rpartition("sig=")[2].partition("&")[0]

        return sign

    def test_a_sas_token_is_enough(self, signed: Callable[[float], str]) -> None:
        signed(600)
        driver = streamkit_azure.connect("azurite:///signed", timeout=30)
        store = driver.open(uuid4())
        store.put(PARTITION, b"a", b"1")
        store.put(PARTITION, b"b", LARGE)
        assert [row.key for row in store.scan(PARTITION, b"", b"\xff")] == [b"a", b"b"]
        grant = store.acquire("leader", 30)
        assert grant is not None
        store.release(grant)
        driver.close()

    def test_an_expired_token_is_denied_and_its_signature_is_shown_nowhere(
        self, signed: Callable[[float], str], caplog: pytest.LogCaptureFixture
    ) -> None:
        signature = signed(-3600)
        driver = streamkit_azure.connect("azurite:///signed", timeout=30)
        store = driver.open(uuid4())
        shown = [repr(driver), repr(store), repr(driver._account)]
        for call in (partial(write, store), *(partial(read, store) for read in READS.values())):
            with pytest.raises(AccessDenied, match="has expired") as raised:
                call()
            shown += ["".join(traceback.format_exception(raised.value)), repr(raised.value)]
        assert not [text for text in [*shown, caplog.text] if signature in text]
        driver.close()

    @pytest.mark.parametrize("fault", [*LOST, answer(500, "InternalError"), answer(400, "InvalidInput")])
    def test_no_failure_shows_a_key(self, setting: Setting, fault: Fault) -> None:
        shown = []
        for call in (partial(write, setting.store), *(partial(READS[name], setting.store) for name in ("get", "scan"))):
            setting.tables.once(fault)
            with pytest.raises(StreamkitError) as raised:
                call()
            shown.append("".join(traceback.format_exception(raised.value)))
        for text in shown:
            assert "Eby8vdM02xN" not in text
            assert "hidden" not in text, "what the service says is not passed on"
            assert "SharedKey" not in text

    def test_a_wrong_key_is_denied(self, azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(
            "AZURITE_CONNECTION_STRING",
            f"AccountName=devstoreaccount1;AccountKey=c2VjcmV0;"
            f"BlobEndpoint=http://127.0.0.1:{azurite.blob_port}/devstoreaccount1;"
            f"TableEndpoint=http://127.0.0.1:{azurite.table_port}/devstoreaccount1",
        )
        driver = streamkit_azure.connect("azurite:///signed", timeout=30)
        store = driver.open(uuid4())
        for call in (partial(write, store), partial(READS["get"], store), lambda: store.acquire("leader", 5)):
            with pytest.raises(AccessDenied, match="key or SAS token is wrong"):
                call()
        driver.close()

    def test_nobody_signed_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import azure.identity

        class Nobody:
            def get_token(self, *scopes: str, **options: object) -> object:
                raise azure.identity.CredentialUnavailableError(message="the secret reason")

        for name in [name for name in os.environ if name.startswith("AZURE_")]:
            monkeypatch.delenv(name)
        monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Nobody)
        driver = streamkit_azure.connect("azure://streamkit/test", timeout=3)
        with pytest.raises(AccessDenied, match=r"set AZURE_STORAGE_CONNECTION_STRING.*az login") as raised:
            write(driver.open(uuid4()))
        assert "secret reason" not in "".join(traceback.format_exception(raised.value))
        driver.close()


class TestProxies:
    """The environment's proxies, which are looked up once for each server."""

    @pytest.fixture
    def proxy(self, make_proxy: Callable[[str, int], Proxy], monkeypatch: pytest.MonkeyPatch) -> Proxy:
        proxy = make_proxy("127.0.0.1", 9)
        etag = """W/"datetime'2026-11-26T00%3A00%3A00.0000000Z'\""""
        proxy.plan = lambda request: status(204, headers={"ETag": etag})
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        return proxy

    def test_each_request_goes_through_the_proxy(self, proxy: Proxy) -> None:
        driver = streamkit_azure.connect("azurite:///proxied?host=tables.invalid", timeout=30)
        store = driver.open(uuid4())
        for key in (b"a", b"b", b"c"):
            store.put(PARTITION, key, b"1", NEXT)
        assert len(proxy.seen) == 3
        assert all(request.target.startswith("http://tables.invalid:10002/devsto") for request in proxy.seen)
        driver.close()

    def test_a_server_that_is_excepted_is_asked_itself(
        self, proxy: Proxy, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        driver = streamkit_azure.connect(azurite.url("excepted"), timeout=30)
        store = driver.open(id := uuid4())
        for key in (b"a", b"b"):
            store.put(PARTITION, key, b"1", NEXT)
        assert [value and value.data for value in store.get(PARTITION, [b"a", b"b"])] == [b"1", b"1"]
        assert not proxy.seen
        driver.delete(id)
        driver.close()


class TestCertificates:
    """A server with a certificate of its own, which closes the connection after each answer."""

    @pytest.fixture
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
        certificate, key = sign_itself(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Table)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"https://127.0.0.1:{server.server_port}/devstoreaccount1"
        monkeypatch.setenv(
            "AZURITE_CONNECTION_STRING",
            f"AccountName=devstoreaccount1;AccountKey=c2VjcmV0;BlobEndpoint={place};TableEndpoint={place}",
        )
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        yield "azurite:///certified", certificate
        server.shutdown()
        thread.join()
        server.server_close()

    def test_the_trusted_certificates_are_loaded_once(
        self, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url, certificate = server
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        loaded: list[object] = []
        load = ssl.SSLContext.load_verify_locations

        def counted(context: ssl.SSLContext, *places: str, **named: str) -> None:
            loaded.append((places, named))
            load(context, *places, **named)

        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
        driver = streamkit_azure.connect(url, timeout=30)
        store = driver.open(uuid4())
        for key in (b"a", b"b", b"c"):
            store.put(PARTITION, key, b"1", NEXT)
        driver.close()
        assert len(loaded) == 1

    @pytest.mark.parametrize("named", ["others", "none", "another host"])
    def test_another_certificate_is_refused(
        self, server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
    ) -> None:
        if named == "others":
            (tmp_path / named).mkdir()
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(sign_itself(tmp_path / named)[0]))
        if named == "another host":
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server[1]))
            place = os.environ["AZURITE_CONNECTION_STRING"].replace("127.0.0.1", "localhost")
            monkeypatch.setenv("AZURITE_CONNECTION_STRING", place)
        driver = streamkit_azure.connect(server[0], timeout=3)
        with pytest.raises(StreamkitError):
            write(driver.open(uuid4()))
        driver.close()


class _Table(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.send_header("ETag", """W/"datetime'2026-11-26T00%3A00%3A00.0000000Z'\"""")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...
