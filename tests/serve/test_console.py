"""The console: its files, its sessions, and its screens in a real Chromium."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import jwt
import pytest
from fix_browser import npm_folder
from fix_covered import EXHAUSTIVE
from fix_serve import Reply, Served

import streamkit
from harness.shop import HOSTILE, fill
from streamkit import Record
from streamkit.serve.keys import KeyFile
from streamkit.serve.names import encode_name
from streamkit.serve.tokens import Tokens

PATIENCE = 60_000
"""Milliseconds for which the browser waits for something: the machine may be busy."""


class Console:
    """A server with keys and a shop's store, a Chromium, and the messages and requests of its pages."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.keys = KeyFile(folder / "keys.json")
        self.admin = self.keys.create(["admin"], name="admin")
        self.reader = self.keys.create(["read"], name="reader")
        self.served = Served("memory://console", keys=self.keys.path, hosts=["127.0.0.1"])
        self.store = self.served.store
        fill(self.store, orders=12, hostile=True)
        self.browser = browser
        self.said: list[str] = []
        self.asked: set[str] = set()
        self.shown = 0

    def page(self, key: str | None = None, *, width: int = 1440, theme: str = "light") -> Any:
        """A page of a new viewer with this key; None: of an admin."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, locale="en-US", base_url=self.served.address
        )
        answer = context.request.post(
            "/console/session", data={"key": key or self.admin}, headers={"Origin": self.served.address}
        )
        assert answer.status == 201, answer.text()
        return self.watched(context)

    def watched(self, context: Any) -> Any:
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.add(request.url))
        return page

    def go(self, page: Any, *parts: str) -> None:
        """Show a screen, and wait until it has its data."""
        self.shown += 1  # so that the browser loads the page anew
        page.goto(f"/console/?{self.shown}#/{'/'.join([str(self.served.id), *parts])}")
        page.locator("h1#title").wait_for()
        page.locator(".skeleton").first.wait_for(state="detached")

    def check_quiet(self) -> None:
        """No page has said an error, and none has asked another server for anything."""
        said, self.said = self.said, []
        assert [line for line in said if line.startswith(("error", "warning"))] == []
        assert {url for url in self.asked if not url.startswith(self.served.address)} == set()


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        found = Console(browser, tmp_path_factory.mktemp("console"))
        yield found
        browser.close()
        found.served.close()


@pytest.fixture
def admin(console: Console) -> Iterator[Any]:
    page = console.page()
    yield page
    page.context.close()
    console.check_quiet()


@pytest.fixture
def reader(console: Console) -> Iterator[Any]:
    page = console.page(console.reader)
    yield page
    page.context.close()
    console.check_quiet()


def entries_of(page: Any) -> Any:
    """The drawn rows of the list of entries."""
    return page.get_by_role("listbox", name="Entries of").get_by_role("option")


# -- files -----------------------------------------------------------------------------------------------------------


def _assets(served: Served) -> list[str]:
    return re.findall(r'(?:src|href)="(assets/[^"]+)"', served.ask("GET", "/console/").body.decode())


def test_the_page_runs_only_files_of_the_server(serve: Callable[..., Served]) -> None:
    page = serve().ask("GET", "/console/")
    policy = page.headers["content-security-policy"]
    assert page.status == 200
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    text = page.body.decode()
    assert re.findall(r"<script(?![^>]*src=)", text) == []
    assert re.findall(r"\son\w+=|style=|https?://", text) == []


def test_files_are_kept_for_ever_and_the_page_is_asked_for_again(serve: Callable[..., Served]) -> None:
    served = serve()
    page = served.ask("GET", "/console/")
    assert page.headers["cache-control"] == "no-cache"
    assert served.ask("GET", "/console/", headers={"If-None-Match": page.headers["etag"]}).status == 304
    names = _assets(served)
    assert len(names) > 7
    for name in names:
        found = served.ask("GET", f"/console/{name}")
        assert (found.status, found.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
        assert found.headers["x-content-type-options"] == "nosniff"
        assert served.ask("GET", "/console/" + re.sub("assets/[0-9a-f]+", "assets/00", name)).status == 404
    assert served.ask("GET", "/console").headers["location"] == "console/"
    folder = names[0].split("/")[1]
    for name in ("../pages.py", "%2e%2e/pages.py", "..%2fpages.py", "index.html", "screens", "screens/"):
        assert served.ask("GET", f"/console/assets/{folder}/{name}").status == 404, name


def test_the_files_of_other_projects_have_their_licences() -> None:
    import streamkit.serve.console

    folder = Path(streamkit.serve.console.__file__).parent / "static" / "vendor"
    told = (folder / "README.txt").read_text()
    for file in folder.iterdir():
        assert file.name == "README.txt" or file.name in told, file.name
    assert {name for name in re.findall(r"LICENSE-[a-z-]+\.txt", told) if not (folder / name).read_text()} == set()


def test_a_server_without_a_console_has_neither_pages_nor_sessions(serve: Callable[..., Served]) -> None:
    served = serve(console=False)
    assert served.ask("GET", "/console/").status == 404
    assert served.ask("GET", "/console/session").status == 404


# -- sessions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyed(serve: Callable[..., Served], tmp_path: Path) -> Served:
    keys = KeyFile(tmp_path / "keys.json")
    served = serve(keys=keys.path)
    served.key = keys.create(["read", "write"])  # type: ignore[attr-defined]
    served.file = keys  # type: ignore[attr-defined]
    return served


def _sign_in(served: Served, key: str | None = None, **headers: str) -> Reply:
    body = {"key": key or served.key}  # type: ignore[attr-defined]
    return served.ask("POST", "/console/session", body, {"Origin": served.address, **headers})


def _cookie(reply: Reply) -> dict[str, str]:
    return {"Cookie": reply.headers["set-cookie"].partition(";")[0]}


def test_a_session_is_a_cookie_that_no_script_and_no_other_site_can_use(keyed: Served) -> None:
    begun = _sign_in(keyed)
    assert begun.status == 201
    kept = begun.headers["set-cookie"]
    assert kept.startswith(f"streamkit_session_{keyed.port}=cs_")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(kept.split("; "))
    assert keyed.key not in kept  # type: ignore[attr-defined]
    assert begun.json["scopes"] == ["read", "write"]
    cookie = _cookie(begun)
    assert keyed.ask("GET", "spaces", headers=cookie).status == 200
    assert keyed.ask("GET", "/console/session", headers=cookie).json["signed_in"] is True
    assert keyed.ask("GET", "/console/session").json["signed_in"] is False
    assert keyed.ask("GET", "spaces").status == 401


def test_a_page_of_another_origin_changes_nothing_with_the_cookie(keyed: Served) -> None:
    cookie = _cookie(_sign_in(keyed))
    entries = "spaces/orders/segments/1/entries"
    foreign = ("https://evil.example", "null", f"http://127.0.0.1:{keyed.port + 1}", f"http://localhost:{keyed.port}")
    for origin in foreign:
        assert keyed.ask("POST", entries, {"json": 1}, {**cookie, "Origin": origin}).status == 403, origin
        assert keyed.ask("GET", "spaces", headers={**cookie, "Origin": origin}).status == 403, origin
        assert _sign_in(keyed, Origin=origin).status == 403, origin
    for site in ("cross-site", "same-site"):
        assert keyed.ask("GET", "spaces", headers={**cookie, "Sec-Fetch-Site": site}).status == 403
    assert keyed.ask("POST", entries, {"json": 1}, cookie).status == 403, "a browser always names the origin"
    assert keyed.ask("POST", entries, {"json": 1}, {**cookie, "Origin": keyed.address}).status == 201
    assert keyed.store.peek("orders", "1").sequence == 1


def test_a_page_of_another_origin_changes_nothing_on_a_server_without_keys(serve: Callable[..., Served]) -> None:
    served = serve(origins=["https://app.example"])
    entries = "spaces/orders/segments/1/entries"
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        plain = {"Content-Type": "text/plain", **headers}
        assert served.ask("POST", entries, b"x", plain).status == 403, "a browser sends text/plain without a preflight"
    for headers in ({}, {"Origin": served.address}, {"Origin": "https://app.example"}):
        assert served.ask("POST", entries, b"x", {"Content-Type": "text/plain", **headers}).status == 201
    assert served.store.peek("orders", "1").sequence == 3


def test_a_rebound_host_gets_neither_page_nor_session(serve: Callable[..., Served]) -> None:
    served = serve(hosts=["localhost", "127.0.0.1"])
    for path in ("/console/", "/console/session", "/v1/stores/_/spaces"):
        assert served.ask("GET", path, headers={"Host": "evil.example"}).status == 421


def test_a_session_ends_with_its_key_and_with_its_time(keyed: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = _cookie(_sign_in(keyed))
    name, _, value = cookie["Cookie"].partition("=")
    _, id, expires, mac = value.split("_")
    for forged in (
        f"cs_{id}_{int(expires) + 1}_{mac}",
        f"cs_{id}_{expires}_{'0' * 64}",
        f"cs_{id}_{expires}_é",
        "cs___",
    ):
        assert keyed.ask("GET", "spaces", headers={"Cookie": f"{name}={forged}"}).status == 401
    ticket = keyed.ask("POST", "/v1/tickets", {"path": "/"}, {**cookie, "Origin": keyed.address}).json["ticket"]
    assert keyed.ask("GET", "spaces", headers={"Cookie": f"{name}={ticket}"}).status == 401
    assert keyed.ask("DELETE", "/console/session", headers={**cookie, "Origin": keyed.address}).status == 204
    keyed.file.revoke(id)  # type: ignore[attr-defined]
    monkeypatch.setattr("streamkit.serve.keys._LOOK", 0.0)
    assert keyed.ask("GET", "spaces", headers=cookie).status == 401
    assert keyed.ask("GET", "/console/session", headers=cookie).json["signed_in"] is False


def test_a_one_time_code_begins_one_session(keyed: Served) -> None:
    service = keyed.application.service
    service.codes["once"] = keyed.file.read()[0].id  # type: ignore[attr-defined]
    asked = {"Origin": keyed.address}
    assert keyed.ask("POST", "/console/session", {"code": "other"}, asked).status == 401
    assert keyed.ask("POST", "/console/session", {"code": "once"}, {"Origin": "https://evil.example"}).status == 403
    assert keyed.ask("POST", "/console/session", {"code": "once"}, asked).status == 201
    again = keyed.ask("POST", "/console/session", {"code": "once"}, asked)
    assert (again.status, "used before" in again.json["detail"]) == (401, True)


def test_a_jwt_begins_a_session_that_ends_with_it(serve: Callable[..., Served]) -> None:
    secret = b"0123456789abcdef" * 2
    served = serve(tokens=Tokens(secret=secret))
    claims = {"scope": "read streamkit::*", "exp": int(time.time()) + 3_000}
    begun = _sign_in(served, jwt.encode(claims, secret))
    assert (begun.status, begun.json["scopes"]) == (201, ["read"])
    (seconds,) = re.findall(r"Max-Age=(\d+)", begun.headers["set-cookie"])
    assert int(seconds) <= 3_000
    cookie = _cookie(begun)
    assert served.ask("GET", "spaces", headers=cookie).status == 200
    body, own = {"json": 1}, {**cookie, "Origin": served.address}
    assert served.ask("POST", "spaces/a/segments/b/entries", body, own).status == 403
    assert _sign_in(served, jwt.encode({**claims, "exp": 1}, secret)).status == 401
    assert _sign_in(served, jwt.encode(claims, secret * 2)).status == 401


# -- screens ---------------------------------------------------------------------------------------------------------


def test_a_viewer_signs_in_and_out(console: Console) -> None:
    context = console.browser.new_context(base_url=console.served.address, locale="en-US")
    page = console.watched(context)
    page.goto("/console/")
    page.get_by_label("Key").fill(console.admin)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    assert console.admin not in json.dumps(context.storage_state())
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.get_by_text("Sessions in other browsers stay valid").wait_for()
    context.close()
    console.check_quiet()


def test_a_chart_is_drawn_to_its_end_in_a_browser_with_an_odd_language(console: Console) -> None:
    console.store.produce("bars", "a", [Record(b"first")])
    time.sleep(0.1)  # two bars of one entry each are equally high, wherever the machine paused
    console.store.produce("bars", "a", [Record(b"last")])
    page = console.page()
    page.add_init_script(
        "Object.defineProperty(Navigator.prototype, 'language', { get: () => 'en-US@posix', configurable: true })"
    )
    console.go(page, "spaces", "bars")
    page.locator(".plot canvas").wait_for()
    counts = page.wait_for_function(
        """() => {
            const canvas = document.querySelector(".plot canvas")
            const edge = canvas.width - 8 * devicePixelRatio // the chart ends here
            const { data } = canvas.getContext("2d").getImageData(edge - 14, 0, 14, canvas.height)
            let bar = 0
            for (let at = 0; at < data.length; at += 4) {
                if (data[at + 3] === 255 && data[at] < 40 && data[at + 1] > 100 && data[at + 1] < 140) bar += 1
            }
            return bar
        }"""
    )
    assert counts.json_value() > 0
    page.context.close()
    console.check_quiet()


def test_the_overview_shows_sizes_and_spaces(console: Console, admin: Any) -> None:
    console.go(admin)
    admin.get_by_text("Stored bytes by tier").wait_for()
    size = console.store.size("orders")
    row = admin.get_by_role("row").filter(has=admin.get_by_role("link", name="orders", exact=True))
    row.get_by_role("cell", name=str(size.entries), exact=True).wait_for()
    admin.get_by_role("link", name="orders", exact=True).click()
    admin.get_by_role("img", name=re.compile(r"^Chart: \d+ entries")).wait_for()


def test_a_size_that_takes_long_is_asked_for_less_often(console: Console, admin: Any) -> None:
    asked: list[str] = []

    def slow(route: Any) -> None:
        asked.append(route.request.url)
        admin.clock.run_for(3_000)
        route.continue_()

    admin.clock.install()
    admin.route(f"**/v1/stores/{console.served.id}", slow)
    console.go(admin)
    admin.get_by_text("Stored bytes by tier").wait_for()
    admin.clock.run_for(45_000)
    admin.get_by_text("Stored bytes by tier").wait_for()
    assert len(asked) == 1
    with admin.expect_request(f"**/v1/stores/{console.served.id}"):
        admin.clock.run_for(30_000)


def test_entries_begin_anywhere_and_show_gaps_in_their_place(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "orders", "segments", "order-003?from=beginning")
    rows = entries_of(admin)
    rows.nth(1).wait_for()
    assert "1 entry erased" in rows.nth(1).inner_text()
    rows.nth(0).click()
    admin.get_by_role("region", name="Payload").get_by_text('"placed"').wait_for()
    console.go(admin, "spaces", "sensors", "segments", "cellar?from=beginning")
    rows.first.wait_for()
    assert "180 entries removed" in rows.first.inner_text()
    console.go(admin, "spaces", "sensors", "segments", "cellar?from=sequence&at=250")
    rows.first.wait_for()
    assert rows.first.inner_text().startswith("250")


def test_the_address_keeps_the_filter_and_the_chosen_entry(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "orders", "segments", "order-002?from=beginning")
    admin.get_by_label("Filter").fill("order")
    admin.get_by_label("Filter").fill("")
    entries_of(admin).nth(1).click()
    panel = admin.get_by_role("complementary", name="The chosen entry")
    panel.wait_for()
    admin.wait_for_url(re.compile("entry=2"))
    admin.get_by_label("Filter").fill("paid")
    admin.wait_for_url(re.compile("filter=paid"))
    admin.reload()
    panel.get_by_text("#2").wait_for()
    assert admin.get_by_label("Filter").input_value() == "paid"
    panel.get_by_role("button", name="Close", exact=True).click()
    panel.wait_for(state="detached")
    admin.wait_for_function("document.activeElement.classList.contains('rows')")
    admin.keyboard.press("Enter")
    panel.wait_for()
    admin.keyboard.press("Escape")
    panel.wait_for(state="detached")
    console.go(admin, "spaces", "orders", "entries?from=end&entry=2&of=order-002")
    panel.get_by_text("#2").wait_for()


def test_back_closes_an_entry_on_a_small_screen(console: Console) -> None:
    page = console.page(width=390)
    console.go(page, "spaces", "orders", "segments", "order-002?from=beginning")
    panel = page.get_by_role("complementary", name="The chosen entry")
    for leave in (page.go_back, lambda: panel.get_by_role("button", name="Close", exact=True).click()):
        entries_of(page).nth(1).click()
        panel.wait_for()
        leave()
        panel.wait_for(state="detached")
        entries_of(page).nth(1).wait_for()
        assert "order-002" in page.url
    page.context.close()
    console.check_quiet()


def test_a_binary_payload_is_named_by_its_size(console: Console, admin: Any) -> None:
    console.store.produce("binary", "a", [Record(b"\x00\xff\xfe\xfd", {"k" * 200: "the value"})])
    console.go(admin, "spaces", "binary", "segments", "a?from=sequence&at=1&entry=1")
    panel = admin.get_by_role("complementary", name="The chosen entry")
    panel.get_by_text("4 bytes, as base64").wait_for()
    assert "4 bytes" in entries_of(admin).first.inner_text()
    assert panel.get_by_text("the value").bounding_box()["width"] > 150
    console.go(admin, "spaces", "binary", "segments", "a", "travel")
    admin.get_by_text("its payload is binary, 4 bytes").wait_for()


def test_spaces_that_are_named_like_parts_of_javascript_have_their_figures(console: Console, admin: Any) -> None:
    for name in ("__proto__", "constructor"):
        console.store.produce(name, "s", [Record(b"1"), Record(b"2")])
        console.go(admin, f"spaces?{name}")
        row = admin.get_by_role("row").filter(has=admin.get_by_role("link", name=name, exact=True))
        row.get_by_role("cell", name="2", exact=True).wait_for()


def test_numbers_are_shown_and_copied_as_they_were_written(console: Console, admin: Any) -> None:
    written = '{"id": 12345678901234567890, "price": 0.10000000000000000001, "far": 1e400, "list": [1.0, 2e1]}'
    console.store.produce(
        "figures", "big", [Record(written.encode()), Record(b'{"list": null, "id": 12345678901234567891}')]
    )
    console.go(admin, "spaces", "figures", "segments", "big?from=beginning")
    entries_of(admin).first.click()
    detail = admin.get_by_role("complementary", name="The chosen entry")
    for number in ("12345678901234567890", "0.10000000000000000001", "1e400", "20"):
        detail.get_by_role("region", name="Payload").get_by_text(number, exact=True).wait_for()
    detail.get_by_role("button", name="Copy the payload").click()
    detail.get_by_role("button", name="Copy the payload").locator("path[d='M4 10.5 8 14.5 16 6']").wait_for()
    assert json.loads(admin.evaluate("document.documentElement.dataset.copied"))["id"] == 12345678901234567890
    filter = admin.get_by_label("Filter")
    filter.fill("id=12345678901234567891")
    admin.get_by_text("1 match in 2").wait_for()
    console.go(admin, "spaces", "figures", "segments", "big", "travel")
    state = admin.get_by_role("region", name="State")
    state.get_by_text("12345678901234567891", exact=True).wait_for()
    assert admin.locator(".diff li").first.inner_text().split() == [
        "/id", "−", "12345678901234567890", "+", "12345678901234567891",
    ]  # fmt: skip


def test_an_appended_number_is_written_as_it_was_typed(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "sensors", "segments", "typed")
    typed = ['{"id": 12345678901234567890, "x": 1.0, "far": 1e400}', "12345678901234567890", "no: 12345678901234567890"]
    for at, text in enumerate(typed, 1):
        admin.get_by_role("button", name="Append").click()
        dialog = admin.get_by_role("dialog", name="Append an entry")
        dialog.get_by_label("Payload").fill(text)
        dialog.get_by_role("button", name="Append").click()
        admin.get_by_text(f"Entry {at} of typed is written").wait_for()
    assert [entry.payload.decode() for entry in console.store.consume_segment("sensors", "typed")] == typed


def test_a_list_of_many_groups_says_that_there_are_more(console: Console, admin: Any) -> None:
    console.store.create_space("crowd")
    for number in range(102):
        console.store.group("crowd", f"group-{number:03}")
    console.go(admin, "spaces", "crowd", "groups")
    admin.get_by_text("100 groups shown, and there are more").wait_for()
    admin.get_by_role("button", name="Show more").click()
    admin.get_by_role("link", name="group-101").wait_for()
    assert admin.get_by_text("there are more").count() == 0


def test_a_huge_payload_is_cut_on_the_screen_and_copied_whole(console: Console, admin: Any) -> None:
    text, document = "line\n" * 600_000, json.dumps({"v": "y" * 3_000_000})
    for name, payload in (("text", text), ("document", document)):
        console.store.produce("huge", name, [Record(payload.encode())])
        console.go(admin, "spaces", "huge", "segments", f"{name}?from=beginning")
        entries_of(admin).first.click()
        detail = admin.get_by_role("complementary", name="The chosen entry")
        assert len(detail.get_by_role("region", name="Payload").inner_text()) < 200_000
        detail.get_by_text("characters; copy it to see all").wait_for()
        detail.get_by_role("button", name="Copy the payload").click()
        detail.get_by_role("button", name="Copy the payload").locator("path[d='M4 10.5 8 14.5 16 6']").wait_for()
        copied = admin.evaluate("document.documentElement.dataset.copied")
        assert copied == text if name == "text" else json.loads(copied) == json.loads(document)
        console.go(admin, "spaces", "huge", "segments", name, "travel")
        assert len(admin.locator("main").inner_text()) < 50_000


@pytest.mark.parametrize("width", [360, 1440])
def test_a_long_name_makes_no_screen_wider(console: Console, width: int) -> None:
    name = "n" * 255
    console.store.produce(name, name, [Record(json.dumps({name: name}).encode(), {"event": name})])
    page = console.page(width=width)
    of_space = ("", "/entries", "/groups", "/remove", f"/segments/{name}", f"/segments/{name}/travel")
    wider = "(() => { const main = document.querySelector('main'); return main.scrollWidth - main.clientWidth })()"
    for screen in ("", "spaces", *(f"spaces/{name}{part}" for part in of_space), "operations"):
        console.go(page, screen)
        assert page.evaluate(wider) == 0, screen
    page.context.close()
    console.check_quiet()


def test_a_place_that_does_not_exist_says_so(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "missing", "entries")
    admin.get_by_text("There is no such space").wait_for()
    console.go(admin, "spaces", "orders", "segments", "missing")
    admin.get_by_text("There is no such segment").wait_for()


def test_the_filter_finds_an_order_and_reads_on_until_it_does(console: Console, admin: Any) -> None:
    records = [Record(b'{"customer": {"id": %d}, "note": "n%d"}' % (n, n)) for n in range(2_000)]
    for segment in ("a", "b"):
        console.store.produce("found", segment, records)
    console.go(admin, "spaces", "found", "entries")
    admin.get_by_label("Filter").fill("customer.id=42 segment:a")
    rows = entries_of(admin)
    rows.first.wait_for()
    admin.get_by_text("1 match in 4,000").wait_for()
    assert (rows.count(), "n42" in rows.first.inner_text()) == (1, True)
    admin.get_by_label("Filter").fill("nothing-has-this")
    admin.get_by_text("No entry matches the filter").wait_for()


def test_a_live_tail_of_ten_thousand_entries_draws_only_what_is_in_sight(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "live", "segments", "tail")
    admin.evaluate(
        """() => {
            window.longest = 0
            new PerformanceObserver(list => {
                for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration)
            }).observe({ entryTypes: ["longtask"] })
            window.most = 0
            const count = () => { window.most = Math.max(window.most, document.querySelectorAll(".row").length) }
            new MutationObserver(count).observe(document.body, { childList: true, subtree: true })
        }"""
    )
    admin.get_by_role("button", name="Live").click()
    admin.locator(".foot-line .badge.good").wait_for()
    records = [Record(b'{"n": %d, "text": "%b"}' % (n, b"x" * 60)) for n in range(100)]
    for _ in range(100):
        console.store.produce("live", "tail", records)
    admin.get_by_text("10,000 entries").wait_for()
    rows = entries_of(admin)
    assert rows.last.get_attribute("aria-posinset") == rows.last.get_attribute("aria-setsize") == "10000"
    assert 10 < admin.evaluate("window.most") < 100
    if EXHAUSTIVE:
        assert admin.evaluate("window.longest") < 50
    admin.get_by_role("button", name="Stop").click()
    admin.get_by_role("button", name="Live").wait_for()


def test_a_viewer_without_the_scope_changes_nothing(console: Console, reader: Any) -> None:
    before = console.store.size("orders").entries
    console.go(reader, "spaces", "orders", "segments", "order-001")
    append = reader.get_by_role("button", name="Append")
    assert append.get_attribute("aria-disabled") == "true"
    append.click(force=True)
    reader.get_by_text("needs a key with the scope “write”").wait_for()
    assert reader.get_by_role("dialog").count() == 0
    for screen, button in (("groups/billing", "Redrive all"), ("groups/billing", "Seek…"), ("remove", "Dry run")):
        console.go(reader, "spaces", "orders", *screen.split("/"))
        assert reader.get_by_role("button", name=button).get_attribute("aria-disabled") == "true", button
    console.go(reader, "routes")
    assert reader.get_by_role("button", name="Resume").get_attribute("aria-disabled") == "true"
    assert reader.get_by_role("link", name="Keys").count() == 0
    console.check_quiet()
    place = "/v1/stores/_/spaces/orders/segments/order-001/entries"
    refused = reader.evaluate(
        """path => fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"json": 1}' })
            .then(answer => answer.status)""",
        place,
    )
    assert refused == 403
    console.said.clear()  # the browser says that it was refused
    assert console.store.size("orders").entries == before


def test_an_entry_is_appended_and_a_lost_race_is_told(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "orders", "segments", "appended")
    admin.get_by_role("button", name="Append").click()
    dialog = admin.get_by_role("dialog")
    dialog.get_by_label("Payload").fill('{"by": "hand"}')
    dialog.get_by_role("button", name="Append").click()
    admin.get_by_text("Entry 1 of appended is written").wait_for()
    assert console.store.peek("orders", "appended").payload == b'{"by": "hand"}'
    admin.get_by_role("button", name="Append").click()
    dialog.get_by_label("Expected last sequence").fill("7")
    dialog.get_by_role("button", name="Append").click()
    dialog.get_by_role("alert").wait_for()
    assert console.store.peek("orders", "appended").sequence == 1
    console.said.clear()  # the browser says that it was refused


def test_dead_letters_are_redriven_and_a_group_seeks(console: Console, admin: Any) -> None:
    console.go(admin)
    admin.get_by_role("link", name=re.compile(r"^\d+ dead letters in queues$")).click()
    admin.get_by_role("link", name="emails").wait_for()
    console.go(admin, "queues", "emails")
    admin.get_by_text("550 mailbox unavailable").first.wait_for()
    admin.get_by_role("checkbox").first.check()
    admin.get_by_role("button", name="Redrive 1 chosen").click()
    admin.get_by_text("1 entry will be delivered again").wait_for()
    assert console.store.queue("emails", max_deliveries=1).status().dead == 2
    admin.get_by_role("button", name="Redrive all").click()
    assert console.store.queue("emails", max_deliveries=1).status().dead == 2, "it asks first"
    admin.get_by_role("dialog").get_by_role("button", name="Redrive them").click()
    admin.get_by_text("There are no dead letters").wait_for()
    console.go(admin, "spaces", "orders", "groups", "billing")
    admin.get_by_role("button", name="Seek…").click()
    admin.get_by_label("End").check()
    admin.get_by_role("dialog").get_by_role("button", name="Seek").click()
    admin.get_by_text("The group continues from there").wait_for()
    group = console.store.find_group("orders", "billing")
    assert group is not None
    assert group.status().unread == 0


def test_a_paused_route_says_why_and_goes_on(console: Console, admin: Any) -> None:
    console.go(admin, "routes")
    route = admin.get_by_role("region", name="Route invoices")
    route.get_by_text("KeyError: 'tax_id'").wait_for()
    route.get_by_role("button", name="Skip the entry…").click()
    admin.get_by_role("dialog").get_by_role("button", name="Skip it").click()
    route.get_by_role("button", name="Pause").wait_for()
    route.get_by_text("Last error: KeyError: 'tax_id'").wait_for()
    found = console.store.find_route("invoices")
    assert found is not None
    assert found.status().state != "paused"


def test_a_view_is_asked_in_sql_which_cannot_write(console: Console, admin: Any) -> None:
    console.go(admin, "views", "orders-by-town")
    admin.get_by_text("on this machine").wait_for()
    admin.get_by_role("region", name="Rows").get_by_role("cell", name="order-001").wait_for()
    sql = admin.get_by_role("textbox", name="SQL")
    sql.fill("select status, count(*) as orders from orders group by status order by 1")
    sql.press("Control+Enter")
    admin.get_by_role("columnheader", name="orders").wait_for()
    for harmful in ("delete from orders", "attach 'x' as y"):
        sql.fill(harmful)
        admin.get_by_role("button", name="Run").click()
        admin.get_by_role("alert").wait_for()
        assert admin.get_by_role("region", name="Rows").count() == 0
    console.go(admin, "views", "revenue")
    admin.get_by_text("no exchange rate for the currency XTS").wait_for()
    console.said.clear()  # the browser says that SQL was refused


def test_time_travel_shows_the_state_after_each_entry(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "orders", "segments", "order-001", "travel")
    state = admin.get_by_role("region", name="State")
    state.get_by_text('"returned"').wait_for()
    slider = admin.get_by_role("slider", name="Entry")
    slider.press("Home")
    state.get_by_text('"placed"').wait_for()
    admin.get_by_role("button", name="One entry on").click()
    state.get_by_text('"P-00001"').wait_for()
    assert state.get_by_text('"Customer 1"').count() == 1, "the state has what was written before"
    admin.get_by_text('/status − "placed" + "paid"').wait_for()


def test_states_are_folded_as_the_standards_say(console: Console, admin: Any) -> None:
    console.go(admin)
    merges = [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ]
    patches = [
        ({"foo": ["a", "c"]}, [{"op": "add", "path": "/foo/1", "value": "b"}], {"foo": ["a", "b", "c"]}),
        ({"foo": [1]}, [{"op": "add", "path": "/foo/-", "value": 2}], {"foo": [1, 2]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": 1, "b": 1}),
        ({"/": 1, "~": 2}, [{"op": "replace", "path": "/~1", "value": 3}, {"op": "remove", "path": "/~0"}], {"/": 3}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "", "value": [5]}], [5]),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 2}], "refused"),
        ({"a": 1}, [{"op": "remove", "path": "/b"}], "refused"),
        ({"a": 1}, [{"op": "replace", "path": "/b/c", "value": 2}], "refused"),
    ]
    found = admin.evaluate(
        """async ([folder, merges, patches]) => {
            const { mergePatch, jsonPatch } = await import(`${folder}/fold.js`)
            const tried = (document, patch) => { try { return jsonPatch(document, patch) } catch { return "refused" } }
            return [merges.map(([target, patch]) => JSON.stringify(mergePatch(target, patch))),
                patches.map(([document, patch]) => JSON.stringify(tried(document, patch)))]
        }""",
        [f"/console/{_assets(console.served)[0].rpartition('/')[0]}", merges, patches],
    )
    assert [json.loads(text) for text in found[0]] == [wanted for _, _, wanted in merges]
    assert [json.loads(text) for text in found[1]] == [wanted for _, _, wanted in patches]


def test_a_removal_is_tried_first_and_needs_the_name_of_the_space(console: Console, admin: Any) -> None:
    console.store.produce("removed", "a", [Record(b"%d" % n, {"subject": f"user-{n % 2}"}) for n in range(10)])
    console.go(admin, "spaces", "removed", "remove")
    admin.get_by_label("Segment").fill("a")
    admin.get_by_label("Number").fill("8")
    change = admin.get_by_role("button", name="Trim…")
    assert change.get_attribute("aria-disabled") == "true"
    admin.get_by_role("button", name="Dry run").click()
    admin.get_by_text("Would be removed").wait_for()
    assert console.store.size("removed").entries == 10
    admin.get_by_label("Number").fill("1")
    assert change.get_attribute("aria-disabled") == "true", "another trim was tried"
    admin.get_by_label("Number").fill("8")
    change.click()
    dialog = admin.get_by_role("dialog")
    sure = dialog.get_by_role("button", name="Trim")
    assert sure.get_attribute("aria-disabled") == "true"
    dialog.get_by_role("textbox").fill("removed")
    sure.click()
    admin.get_by_text("2 entries removed").wait_for()
    assert console.store.size("removed").entries == 8
    admin.get_by_label("Erase: remove these entries for ever").check()
    admin.get_by_label("With this metadata").fill("subject=user-1")
    admin.get_by_role("button", name="Dry run").click()
    admin.get_by_text("Would be removed").wait_for()
    admin.get_by_role("button", name="Erase…").click()
    dialog.get_by_role("textbox").fill("removed")
    dialog.get_by_role("button", name="Erase").click()
    admin.get_by_text("4 entries removed").wait_for()
    assert {entry.metadata["subject"] for entry in console.store.consume_segment("removed", "a")} == {"user-0"}


def test_keys_are_made_and_revoked(console: Console, admin: Any) -> None:
    console.go(admin, "keys")
    admin.get_by_role("button", name="New key").click()
    dialog = admin.get_by_role("dialog")
    dialog.get_by_label("Name").fill("the shop")
    dialog.get_by_label("write").check()
    dialog.get_by_label("Spaces that begin with").fill("orders, emails")
    dialog.get_by_role("button", name="Make the key").click()
    made = dialog.locator("code").inner_text()
    access = console.keys.access(made)
    assert access is not None
    assert (access.scopes, access.spaces) == (frozenset(("read", "write")), ("orders", "emails"))
    dialog.get_by_role("button", name="Done").click()
    admin.get_by_role("button", name="Revoke the shop").click()
    dialog.get_by_role("button", name="Revoke").click()
    admin.get_by_text("The key is revoked").wait_for()
    assert all(key.name != "the shop" for key in console.keys.read())


def test_an_operation_runs_and_shows_its_result(console: Console, admin: Any) -> None:
    console.go(admin, "operations")
    admin.get_by_label("Space").select_option("sensors")
    admin.get_by_role("button", name="Begin").click()
    admin.get_by_role("cell", name="done").wait_for()
    admin.get_by_role("button", name="Result of verify").click()
    admin.get_by_role("dialog", name="verify of sensors").get_by_role("region", name="Result").wait_for()


def test_copied_commands_are_those_of_the_entry(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "orders", "segments", "order-002?from=beginning")
    entries_of(admin).nth(1).click()
    copy = admin.get_by_role("complementary", name="The chosen entry").get_by_role("group", name="Copy as")
    copied = {}
    for name in ("curl", "Python", "Command line"):
        copy.get_by_role("button", name=name).click()
        copy.get_by_role("button", name=name).locator("path[d='M4 10.5 8 14.5 16 6']").wait_for()  # a tick
        copied[name] = admin.evaluate("document.documentElement.dataset.copied")
    told = subprocess.run(
        ["/bin/sh", "-c", copied["curl"]],
        env={**os.environ, "STREAMKIT_KEY": console.reader},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout)["json"]["status"] == "paid"
    assert "min_sequence=2, max_sequence=2" in copied["Python"]
    compile(copied["Python"], "copied", "exec")
    assert copied["Command line"].startswith("streamkit consume 'orders' 'order-002' --min-sequence 2")


def test_a_copied_command_takes_a_name_that_looks_like_an_option(console: Console, admin: Any) -> None:
    console.store.produce("orders", "-v", [Record(b"1")])
    console.go(admin, "spaces", "orders", "segments", f"{encode_name('-v')}?from=beginning")
    entries_of(admin).first.click()
    copy = admin.get_by_role("complementary", name="The chosen entry").get_by_role("group", name="Copy as")
    copy.get_by_role("button", name="Command line").click()
    copy.get_by_role("button", name="Command line").locator("path[d='M4 10.5 8 14.5 16 6']").wait_for()
    copied = admin.evaluate("document.documentElement.dataset.copied")
    assert copied.startswith("streamkit consume --min-sequence 1 --max-sequence 1 --store ")
    assert copied.endswith(" -- 'orders' '-v'")


def test_the_keyboard_reaches_everything(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "orders", "segments", "order-002?from=beginning")
    rows = admin.get_by_role("listbox", name="Entries of")
    rows.focus()
    rows.press("End")
    rows.press("ArrowUp")
    chosen = admin.locator(".row[aria-selected=true]")
    assert chosen.get_attribute("id") == rows.get_attribute("aria-activedescendant")
    assert int(chosen.get_attribute("aria-posinset")) == int(chosen.get_attribute("aria-setsize")) - 1
    admin.get_by_role("button", name="Dark").press("Enter")
    assert admin.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    admin.reload()
    admin.get_by_role("button", name="Dark", pressed=True).wait_for()
    admin.get_by_role("button", name="Append").press("Enter")
    admin.get_by_role("dialog").wait_for()
    admin.keyboard.press("Escape")
    admin.get_by_role("dialog").wait_for(state="detached")
    assert admin.evaluate("document.activeElement.textContent") == "Append"


def test_names_payloads_and_metadata_are_text_and_never_markup(console: Console, admin: Any) -> None:
    hostile = encode_name(HOSTILE)
    for screen in (
        ("spaces",),
        ("spaces", "orders"),
        ("spaces", hostile),
        ("spaces", hostile, "entries"),
        ("spaces", "orders", "segments", hostile, "travel"),
        ("spaces", hostile, "segments", encode_name("javascript:alert(1)"), "travel"),
    ):
        console.go(admin, *screen)
        looked = "[window.hacked, ({}).hacked, document.querySelectorAll('main img, main script').length]"
        assert admin.evaluate(looked) == [None, None, 0]
        links = "links => links.map(link => link.getAttribute('href'))"
        assert all(address.startswith("#") for address in admin.eval_on_selector_all("main a", links))
    console.go(admin, "spaces", "orders", "segments", f"{hostile}?from=beginning")
    rows = entries_of(admin)
    for at in range(3):
        rows.nth(at).click()
        admin.get_by_role("complementary").get_by_text(HOSTILE).first.wait_for()
    assert admin.evaluate("window.hacked") is None


def test_the_link_of_the_command_signs_one_browser_in(console: Console, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streamkit.cli", "console", "--no-open", "--url", f"file://{tmp_path}/stores"]
    with streamkit.connect(f"file://{tmp_path}/stores") as client:
        client.store(uuid4()).produce("orders", "1", [Record(b"1")])
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=place) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().split()[-1]
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/console/#code=[\w-]{32}", link)
            for heading in ("Overview", "Sign in"):
                page = console.watched(console.browser.new_context(locale="en-US"))
                page.goto(link)
                page.get_by_role("heading", name=heading).wait_for()
                assert "code" not in page.url
                page.context.close()
        finally:
            process.terminate()
            process.wait(60)
    assert process.returncode == 0
    assert list(tmp_path.glob("streamkit-console-*")) == [], "the keys of the session are gone with it"
    console.said.clear()  # the second browser was refused
    console.asked.clear()


# -- accessibility ---------------------------------------------------------------------------------------------------

SCREENS = [
    (),
    ("spaces",),
    ("spaces", "orders"),
    ("spaces", "orders", "entries"),
    ("spaces", "sensors", "segments", "cellar?from=beginning"),
    ("spaces", "empty", "entries"),
    ("spaces", "orders", "segments", "order-001", "travel"),
    ("spaces", "orders", "groups"),
    ("spaces", "orders", "groups", "billing"),
    ("spaces", "orders", "remove"),
    ("spaces", "orders", "settings"),
    ("queues",),
    ("queues", "emails"),
    ("views",),
    ("views", "orders-by-town"),
    ("views", "revenue"),
    ("routes",),
    ("operations",),
    ("keys",),
]
_RUN = """async rules => {
    const only = rules ? { runOnly: { type: "rule", values: rules } } : {}
    const found = await axe.run(document, { resultTypes: ["violations"], ...only })
    return found.violations.map(each => [each.id, each.nodes.map(node => `${node.target} ${node.failureSummary}`)])
}"""


@pytest.fixture(scope="module")
def axe(chromium: str) -> str:
    return (npm_folder("chromium")[1] / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("width", [1440, 390])
def test_every_screen_is_accessible_in_both_themes(console: Console, axe: str, width: int) -> None:
    page = console.page(width=width)
    found = {}
    for screen in SCREENS:
        page.emulate_media(color_scheme="light")
        console.go(page, *screen)
        if screen[-1:] == ("cellar?from=beginning",):
            entries_of(page).nth(3).click()
        page.evaluate(axe)
        found["light", screen] = page.evaluate(_RUN, None)
        page.emulate_media(color_scheme="dark")
        found["dark", screen] = page.evaluate(_RUN, ["color-contrast"])
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{screen} is wider than the window"
        sideways = "(main => main.scrollWidth - main.clientWidth)(document.querySelector('main'))"
        assert page.evaluate(sideways) <= 0, f"{screen} scrolls sideways"
    page.context.close()
    assert {screen: violations for screen, violations in found.items() if violations} == {}
    console.check_quiet()


def test_the_sign_in_and_the_dialogs_are_accessible(console: Console, axe: str) -> None:
    context = console.browser.new_context(base_url=console.served.address, locale="en-US")
    page = console.watched(context)
    page.goto("/console/")
    page.get_by_role("heading", name="Sign in").wait_for()
    page.evaluate(axe)
    assert page.evaluate(_RUN, None) == []
    context.close()
    page = console.page(width=390)
    for screen, button in (("keys", "New key"), ("spaces", "New space"), ("spaces/orders/entries", "Append")):
        console.go(page, screen)
        page.get_by_role("button", name=button).click()
        page.get_by_role("dialog").wait_for()
        page.evaluate(axe)
        assert page.evaluate(_RUN, None) == [], button
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Menu").click()
    page.evaluate(axe)
    assert page.evaluate(_RUN, None) == []
    page.context.close()
    console.check_quiet()
