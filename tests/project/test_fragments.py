"""Pages whose Python is fragments: each block runs, in the order of the page, in the state that its text needs."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from typing import Any

import pytest
from fix_pages import ROOT, STORE, Page, named_in, of
from fix_serve import Served

import streamkit.aio
from streamkit import Record, Retention
from tests.project.test_pages import RUN
from tests.spark import test_pages as spark_pages

ELSEWHERE = {
    "README.md": "test_wheel.py, test_extras.py",
    "testing.md": "tests/testing/test_program_kit.py",
}
"""Pages whose blocks another test runs."""


@of("asyncio.md")
def test_asyncio(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.run(1)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1002
    assert {"order-0 1", "order-1 2", "stock-9 1"} <= set(said)

    async def rest() -> None:
        async with streamkit.aio.connect(page.url) as client:
            store = client.store(STORE)
            await page.await_(2, store=store)
            at_once = page.code(2).replace("timeout(0.5)", "timeout(0)")
            assert at_once != page.code(2)
            capsys.readouterr()
            await page.await_(2, code=at_once)
            assert capsys.readouterr().out.strip() in ("withdrawn", "committed", "absent")
            sent = []

            async def send(delivery: Any) -> None:
                sent.append(bytes(delivery.entry.payload))

            report = (await page.await_(3, send=send))["report"]
            assert (sent, report.acked) == ([b"welcome"], 1)

    asyncio.run(rest())


@of("removing.md")
def test_removing(page: Page) -> None:
    store = page.store(STORE, ("mails", "user-17/a", 2), ("mails", "user-17/b", 1), ("mails", "chat", 9))
    store.produce("mails", "other", [Record(b"hers", {"subject": "user-17"}), Record(b"his", {"subject": "user-18"})])
    report = page.run(1, store=store)["report"]
    assert (report.entries, report.unreached) == (2, ())
    left = [(entry.segment, entry.sequence) for entry in store.consume_space("mails", gaps="skip")]
    assert left == [("chat", n) for n in (1, 2, 3, 5, 6, 8, 9)] + [("other", 2)]

    for space, segment, count in (("orders", "order-42", 20), ("orders", "order-43", 1), ("sensors", "a", 1)):
        store.produce(space, segment, [Record(b"x")] * count)
    (last,) = store.consume_segment("orders", "order-43")
    page.run(2, offset=last.space_offset, Retention=Retention)
    assert "orders" not in store.get_spaces()
    assert store.size("sensors").entries == 1
    store.produce("orders", "order-42", [Record(b"placed")])
    page.run(3)
    page.run(4)
    assert (store.space_settings("orders").trimmed_rows, store.space_settings("orders").archive_grace) == (
        "remove",
        600.0,
    )


@of("local.md")
def test_local(page: Page) -> None:
    page.run(1)
    assert [bytes(entry.payload) for entry in page.store().consume_space("orders")] == [b"placed"]


@of("reliability.md")
def test_reliability(page: Page) -> None:
    store = page.store(STORE, ("orders", "order-42", 3))
    names = page.run(1, store=store, transaction_id=next(iter(store.consume_space("orders"))).trx.id)
    assert names["status"] == "committed"
    assert [bytes(entry.payload) for entry in store.consume_space("orders-2")] == [b"1", b"2", b"3"]


@of("archive.md")
def test_archive(page: Page) -> None:
    pytest.importorskip("deltalake")
    store = page.store(STORE, ("orders", "order-42", 3))
    assert page.run(1, store=store)["report"].entries == 0
    page.run(2, url=page.url)
    assert store.size("orders").entries == 3
    report = page.run(3)["report"]
    assert (report.before, report.after) == (1, 1)
    new, another = (
        page.store("9a3c5b7e-0000-4000-8000-000000000002"),
        page.store("9a3c5b7e-0000-4000-8000-000000000003"),
    )
    page.run(4, new=new, another=another)
    for copy in (new, another):
        assert [bytes(entry.payload) for entry in copy.consume_space("orders")] == [b"1", b"2", b"3"]


@of("archive-table.md")
def test_archive_table(page: Page) -> None:
    for name in ("deltalake", "duckdb", "polars", "pandas"):
        pytest.importorskip(name)
    store = page.store(STORE, ("orders", "order-42", 2), ("orders", "order-43", 1))
    store.archive("orders")
    page.blocks = [block.replace("7d9f…", STORE) for block in page.blocks]
    names = page.run(1)
    counted = names["entries"].group_by("segment").len().collect()
    assert sorted(counted.rows()) == [("order-42", 2), ("order-43", 1)]
    *_, last = store.consume_segment("orders", "order-42")
    names = page.run(2, store=store, last_seen=last.space_offset)
    assert sorted(names["frame"].columns) == ["payload", "segment"]
    assert list(names["pandas"]["segment"]) == ["order-43"]


@of("backup.md")
def test_backup(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.store("7d9f2c1e-0000-4000-8000-000000000001", ("orders", "order-42", 3))
    names = page.run(1)
    assert capsys.readouterr().out == f"1 {names['report'].bytes}\n"
    assert [bytes(entry.payload) for entry in names["new"].consume_space("orders")] == [b"1", b"2", b"3"]


@of("export.md")
def test_export(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    names = page.run(1)
    assert capsys.readouterr().out.startswith("1 ")
    assert [bytes(entry.payload) for entry in names["other"].consume_space("orders")] == [b'{"total": 10}']


@of("tenants.md")
def test_tenants(page: Page, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STREAMKIT_URL", page.url)
    store = page.store(STORE, ("orders", "order-42", 3))
    names = page.run(1)
    assert len(list(names["parts"](store))) == 2
    names["program"]()
    names = page.run(2)
    assert capsys.readouterr().out.split()[1] == "0"


@of("telemetry.md")
def test_telemetry(page: Page, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opentelemetry")
    from streamkit import telemetry

    try:
        page.run(1)
    finally:
        telemetry.disable()
    logger = logging.getLogger("streamkit")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    page.run(2)
    logger.warning("slow", extra={"store": STORE, "space": "orders"})
    assert f"WARNING {STORE} orders slow\n" in capsys.readouterr().err
    page.run(3)["explain"](page.store(STORE, ("orders", "order-42", 3)))


@of("durable-streams.md")
def test_durable_streams(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("durable_streams")
    served = Served(page.url)
    try:
        page.blocks = [block.replace("http://127.0.0.1:4437", served.address) for block in page.blocks]
        page.run(1)
    finally:
        served.close()
    assert capsys.readouterr().out == "[{'text': 'hello'}]\n"


@of("serve.md")
def test_serve(page: Page) -> None:
    pytest.importorskip("mangum")
    from streamkit.serve.keys import KeyFile

    page.store(STORE, ("orders", "order-42", 3))
    key = KeyFile(page.folder / "keys.json").create(["read"])
    page.blocks = [block.replace("s3://bucket/stores", page.url) for block in page.blocks]
    handler = page.run(1)["handler"]
    path = f"/v1/stores/{STORE}/spaces"
    event = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"host": "api.example.com"},
        "requestContext": {
            "http": {"method": "GET", "path": path, "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1"},
            "domainName": "api.example.com",
            "stage": "$default",
        },
        "isBase64Encoded": False,
    }
    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    try:
        refused = handler(event, None)
        event["headers"] = {"host": "api.example.com", "authorization": f"Bearer {key}"}
        answer = handler(event, None)
    finally:
        loop.close()
    assert (refused["statusCode"], answer["statusCode"]) == (401, 200)
    assert "orders" in answer["body"]


def test_every_block_of_the_pages_runs() -> None:
    here = named_in(sys.modules[__name__]) | named_in(spark_pages)
    pages = {
        str(path.relative_to(ROOT / "docs" if path.parent != ROOT else ROOT))
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if re.search(r"^```python\n", path.read_text(), re.MULTILINE)
    }
    assert sorted([*RUN, *here, *ELSEWHERE]) == sorted(pages)
