"""The site: built once, strictly and without a network, and looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
from fix_browser import npm_folder

import streamkit
from streamkit import errors
from streamkit.serve.problems import CODES, ERRORS

ROOT = Path(__file__).parent.parent.parent
SITE = ROOT / "infra" / "site"
API: list[dict[str, Any]] = tomllib.loads((SITE / "pages.toml").read_text())["api"]
REMEDIES: dict[str, dict[str, str]] = tomllib.loads((SITE / "errors.toml").read_text())


def _module(name: str) -> ModuleType:
    """A module of infra/site, which is a folder of scripts."""
    sys.path.insert(0, str(SITE))
    try:
        spec = spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SITE))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built HTML. Its proxy leads nowhere, so an attempt to use a network fails the build."""
    folder = tmp_path_factory.mktemp("site") / "site"
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, str(SITE / "build.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **nowhere},
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def _public_modules() -> Iterator[str]:
    """Packages with a list of public names."""
    for init in sorted((ROOT / "streamkit").rglob("__init__.py")):
        name = ".".join(init.parent.relative_to(ROOT).parts)
        if "\n__all__" in init.read_text() and not re.search(r"\.(log|index|cli|serve)\.|\.(log|index|cli)$", name):
            yield name
    yield from ("streamkit.backend", "streamkit.dcb", "streamkit.errors", "streamkit.members")
    for path in sorted((ROOT / "streamkit" / "adapters").glob("[a-z]*.py")):
        yield f"streamkit.adapters.{path.stem}"


def test_the_site_has_no_broken_link_and_no_unresolved_reference(site: Path) -> None:
    assert (site / "index.html").exists(), "the build itself checks links, references, origins and sizes"
    assert len([path for path in site.rglob("*.html") if path.is_file()]) > 60


@pytest.mark.parametrize("module", sorted(set(_public_modules())))
def test_every_public_name_is_in_the_reference(module: str) -> None:
    shown = {
        name
        for page in API
        for part in page["parts"]
        if part["module"] == module
        for name in part.get("names") or import_module(module).__all__
    }
    if module == "streamkit":
        shown |= set(errors.__all__)
    missing = set(import_module(module).__all__) - shown
    assert not missing, f"infra/site/pages.toml does not name these of {module}"


def test_every_error_has_a_remedy() -> None:
    assert set(REMEDIES["remedies"]) == set(errors.__all__)
    assert set(CODES) == set(REMEDIES["codes"]) | {code for _, _, code in ERRORS}, (
        "the codes of errors are in their rows"
    )


def test_the_reference_shows_every_command_every_route_and_every_remedy(site: Path) -> None:
    commands = (site / "reference" / "commands" / "index.html").read_text()
    assert all(f"<code>{option}" in commands for option in ("--segment-key", "--expected-sequence", "--url"))
    routes = (site / "reference" / "routes" / "index.html").read_text()
    assert "/v1/stores/{st}/spaces/{sp}/transactions" in routes
    refusals = (site / "reference" / "errors" / "index.html").read_text()
    assert all(f"<code>{name}</code>" in refusals for name in (*REMEDIES["remedies"], *REMEDIES["codes"]))


def test_llms_txt_lists_the_pages(site: Path) -> None:
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\)(?:: .+)?$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert len(listed) > 40
    assert [address for address in listed if not (site / address / "index.html").exists()] == []
    assert "An acknowledged write" in (site / "llms-full.txt").read_text()
    assert (site / "llms.txt").read_text().startswith("# streamkit\n\n> streamkit is ")


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("[text](nowhere.md)", "page does not exist"),
        ("[text](#nowhere)", "anchor does not exist"),
        ("[text][streamkit.Nothing]", "unresolved autoref"),
        ("::: streamkit.Nothing", "could not be found"),
    ],
)
def test_the_build_refuses_a_fault_in_a_page(page: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(f"# Title\n\n{page}\n")
    settings = (SITE / "zensical.toml").read_text()
    settings = settings.replace("[project]\n", '[project]\ndocs_dir = "pages"\nsite_dir = "html"\n', 1)
    settings = settings.replace("inventories = []", f'inventories = []\npaths = ["{ROOT}"]')
    (tmp_path / "zensical.toml").write_text(settings)
    assert problem in _module("build").render(tmp_path)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="gone/">x</a>', "index.html: gone/ leads nowhere"),
        ('<a href="#gone">x</a>', "index.html: #gone names no heading"),
        ('<script src="https://cdn.example/x.js"></script>', "from another origin"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "from another origin"),
        ('<autoref identifier="a.b">x</autoref>', "'a.b' is not resolved"),
        (" " * 300_001, "more than 300,000"),
        ("", "no page documents streamkit.Store"),
    ],
)
def test_the_checks_find_a_fault_in_the_html(page: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(page)
    found = _module("checks").problems_of(tmp_path, ["streamkit.Store"])
    assert any(problem in line for line in found), found


def test_the_version_of_the_site_is_pinned() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    assert all("==" in text for text in extra if "streamkit" not in text)
    assert streamkit.__version__


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The address of a server of the built pages, on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


VIOLATIONS = "axe.run({ resultTypes: ['violations'] }).then(found => found.violations)"
"""All rules, and only the nodes that break them: the others are most of the answer."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_load_nothing_from_elsewhere(address: str, browser: Any, scheme: str) -> None:
    axe = (npm_folder("chromium")[1] / "axe-core" / "axe.min.js").read_text()
    page = browser.new_context(color_scheme=scheme).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("", "tutorial/", "serve/", "reference/errors/", "reference/commands/", "reference/python/values/"):
        page.goto(address + name, timeout=120_000)
        page.evaluate(axe)
        found = page.evaluate(VIOLATIONS)
        assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found] == [], name
        colours = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        assert colours == {"light": "default", "dark": "slate"}[scheme]
    assert [url for url in asked if not url.startswith((address, "blob:", "data:"))] == []
