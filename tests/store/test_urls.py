"""URLs of stores and of archives: one set of rules, and errors that repeat none of them."""

from __future__ import annotations

import traceback
from typing import Any
from uuid import uuid4

import pytest

import streamkit
import streamkit.aio
from streamkit.export import export_store, import_store

SECRET = "SECRETVALUE"

MALFORMED = (
    SECRET,
    f"{SECRET}://x",
    f"http://user:{SECRET}@host/",
    f"file:///x?{SECRET}",
    f"file:///x?{SECRET}=1",
    f"file:///x?mode={SECRET}",
    f"file:///x?sig={SECRET}",
    f"file:///x#{SECRET}",
    f"file://user:{SECRET}@host/x",
    f"file://{SECRET}/x",
    f"file://[{SECRET}",
    "file:///x%ff",
    "file:///x%00",
    "file:///x\ny",
    f"s3://bucket/{SECRET}\ty",
    f"azure://account/ap\rp{SECRET}",
    "file:///\ud800",
    f"s3://user:{SECRET}@bucket/x",
    f"s3://KEY:{SECRET}/x",
    f"s3://bucket/x?{SECRET}",
    f"s3://bucket/x?{SECRET}=1",
    f"s3://bucket/x?region={SECRET}",
    f"s3://bucket/x?endpoint_url={SECRET}",
    f"s3://bucket/x?endpoint_url=http://user:{SECRET}@host",
    f"s3://bucket/x?endpoint_url=http://host/?sig={SECRET}",
    f"s3://bucket/x?endpoint_url=http://[{SECRET}",
    f"s3://bucket/x#{SECRET}",
    f"s3://bucket/../{SECRET}",
    f"s3://{SECRET}_/x",
    f"s3://[{SECRET}",
    "s3://bucket/x%ff",
    "s3://bucket/x?region=%ff",
    f"azure://user:{SECRET}@account/app",
    f"azure://account:{SECRET}/app",
    f"azure://account/{SECRET}!",
    f"azure://account/app?{SECRET}",
    f"azure://account/app?sv=1&sig={SECRET}",
    f"azure://account/app?endpoint_suffix={SECRET}!",
    f"azure://account/app#{SECRET}",
    f"azure://[{SECRET}",
    "azure://account/app%ff",
    f"azurite://{SECRET}/app",
    f"azurite:///app?host={SECRET}!",
    f"azurite:///app?blob_port={SECRET}",
    "azurite:///app?host=%ff",
)


@pytest.fixture(params=["connect", "aio.connect"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "STREAMKIT_URL"):
        monkeypatch.delenv(name, raising=False)
    return streamkit.connect if request.param == "connect" else streamkit.aio.connect


def refusal(connect: Any, *args: Any, **options: Any) -> str:
    """The error of `connect` and its causes, as a traceback shows them."""
    with pytest.raises(ValueError) as refused:
        connect(*args, **options)
    error: BaseException | None = refused.value
    assert type(error) is ValueError
    said = []
    while error is not None:
        said.append(f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(said)


@pytest.mark.parametrize("url", MALFORMED, ids=ascii)
def test_a_malformed_store_url_is_refused_and_not_repeated(connect: Any, url: str) -> None:
    assert SECRET not in refusal(connect, url)


@pytest.mark.parametrize(
    "url",
    [
        *MALFORMED,
        "/var/lib/archive",
        "memory://x",
        "nosuch://x",
        "gopher://x/y",
        "file:///x?mode=group",
        f"az://user:{SECRET}@container/x",
        f"az://container/x?sig={SECRET}",
        f"az://container/x#{SECRET}",
        f"az://container/../{SECRET}",
        f"az://{SECRET}/x",
        "az://con--tainer/x",
        "az://container/a%2541",
        "az://container/a%0Ab",
        "file:///a%0Ab",
        "azure://account",
        "s3://bucket/a%2541",
        "",
    ],
    ids=ascii,
)
def test_a_malformed_archive_url_is_refused_and_not_repeated(
    connect: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SECRET not in refusal(connect, "memory://", archive=url)
    if url.isascii() and url:
        monkeypatch.setenv("STREAMKIT_URL", "memory://")
        monkeypatch.setenv("STREAMKIT_ARCHIVE", url)
        assert SECRET not in refusal(connect)


@pytest.mark.parametrize("wrong", [5, b"file:///x", object()], ids=lambda wrong: type(wrong).__name__)
def test_an_archive_url_is_text(connect: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match="an archive URL is str, not"):
        connect("memory://", archive=wrong)


@pytest.mark.parametrize("call", ["store", "export_store", "import_store"])
def test_a_url_in_place_of_a_uuid_or_a_path_is_refused_and_not_repeated(call: str) -> None:
    url = f"s3://user:{SECRET}@bucket/x"
    with streamkit.connect("memory://") as client:
        store = client.store(uuid4())
        given: Any = {"store": client.store, "export_store": export_store, "import_store": import_store}[call]
        with pytest.raises(ValueError, match=r"a URL is not a UUID|by its path, not by a URL") as refused:
            given(url) if call == "store" else given(store, url)
    assert SECRET not in "".join(traceback.format_exception_only(refused.value))
    assert refused.value.__cause__ is None


def test_an_unknown_scheme_of_an_archive_is_told_with_the_known_ones(connect: Any) -> None:
    assert "no archive is kept at gopher://" in (said := refusal(connect, "memory://", archive="gopher://x"))
    assert "s3://bucket/prefix" in said


@pytest.mark.parametrize(
    ("store", "archive", "root", "has"),
    [
        ("memory://", "file:///x/a%25b/../c%20d/", "file:///x/c%20d", {}),
        ("memory://", "file://localhost/x", "file:///x", {}),
        (
            "memory://",
            "s3://bucket/a%23b?endpoint_url=http://127.0.0.1:9&region=eu-1",
            "s3://bucket/a%23b",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "eu-1", "AWS_ALLOW_HTTP": "true"},
        ),
        ("s3://stores?endpoint_url=http://127.0.0.1:9", "s3://bucket/x", "s3://bucket/x", {"AWS_ALLOW_HTTP": "true"}),
        ("s3://stores?region=eu-1", "s3://bucket?region=eu-2", "s3://bucket", {"AWS_REGION": "eu-2"}),
        (
            "azurite:///app?blob_port=7",
            "az://con-tainer/x",
            "az://con-tainer/x",
            {"azure_storage_endpoint": "http://127.0.0.1:7/devstoreaccount1"},
        ),
        (
            "memory://",
            "azurite:///con-tainer/x?blob_port=7",
            "az://con-tainer/x",
            {"azure_storage_endpoint": "http://127.0.0.1:7/devstoreaccount1", "allow_http": "true"},
        ),
        (
            "azurite:///app",
            "azure://account/container/x/y?endpoint_suffix=example.test",
            "az://container/x/y",
            {"azure_storage_endpoint": "https://account.blob.example.test", "azure_storage_account_name": "account"},
        ),
    ],
)
def test_the_options_of_an_archive_url_reach_what_writes_the_archive(
    store: str, archive: str, root: str, has: dict[str, str], s3_credentials: None
) -> None:
    with streamkit.connect(store, archive=archive) as client:
        found, options, _ = client._archive_root()
    assert found == root
    assert options | has == options, "these options at least"


def test_options_of_the_store_are_not_those_of_an_archive_at_another_endpoint(s3_credentials: None) -> None:
    with streamkit.connect("s3://stores?endpoint_url=http://127.0.0.1:9", archive="s3://x12?region=eu-2") as client:
        assert "AWS_ENDPOINT_URL" not in client._archive_root()[1]
