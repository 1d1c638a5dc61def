"""The console: its files, its sessions, and its screens in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_serve import Reply, Served

from harness.shop import fill
from streamkit.serve.keys import KeyFile

PATIENCE = 60_000
"""Milliseconds for which the browser waits for something: the machine may be busy."""


class Console:
    """A server with keys and a shop's store, a Chromium, and what its pages have said and asked for."""

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

    def page(self, key: str | None = None, *, width: int = 1440, theme: str = "light") -> Any:
        """A page of a new viewer, who is signed in with the key; None: as an admin."""
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
        page.goto(f"/console/#/{'/'.join([str(self.served.id), *parts])}")
        page.locator("h1").first.wait_for()
        page.wait_for_function("!document.querySelector('.skeleton')")

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
    context.close()
    console.check_quiet()


def test_the_overview_shows_sizes_and_spaces(console: Console, admin: Any) -> None:
    console.go(admin)
    admin.get_by_text("Stored bytes by tier").wait_for()
    size = console.store.size("orders")
    row = admin.get_by_role("row").filter(has=admin.get_by_role("link", name="orders", exact=True))
    row.get_by_role("cell", name=str(size.entries), exact=True).wait_for()
    admin.get_by_role("link", name="orders", exact=True).click()
    admin.get_by_role("img", name=re.compile(r"^Chart: \d+ entries")).wait_for()


def test_entries_begin_anywhere_and_show_gaps_in_their_place(console: Console, admin: Any) -> None:
    console.go(admin, "spaces", "orders", "segments", "order-003?from=beginning")
    rows = admin.get_by_role("listbox", name="Entries of").get_by_role("option")
    rows.nth(1).wait_for()
    assert "1 entry erased" in rows.nth(1).inner_text()
    rows.nth(0).click()
    admin.get_by_role("region", name="Payload").get_by_text('"placed"').wait_for()
    console.go(admin, "spaces", "sensors", "segments", "cellar?from=sequence&at=250")
    rows.first.wait_for()
    assert rows.first.inner_text().startswith("250")
