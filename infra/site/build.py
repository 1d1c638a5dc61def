"""Build the site: `python infra/site/build.py [FOLDER]`. The default is build/site; the pages are in html/ below it.

It needs the extra `docs`, and no network.

The pages of docs/ are copied and their links follow. The reference is made from the code: the command line from its
options, the routes from the server's OpenAPI document, errors from errors.toml, Python from docstrings. Whatever a page
links to in the repository becomes a page too. The build fails for every warning, unresolved reference, broken link or
foreign script, and for a page above 300 KB.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks import problems_of
from reference import api_pages, commands_page, errors_page, examples_page, public_parts, routes_page, urls_page

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEPT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".sh": "sh",
    ".xml": "xml",
}


class Site:
    """The pages of one build. Keeps the sources that pages link to, until each of them is a page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = folder / "pages"
        self.sources: list[Path] = []

    def write(self, name: str, text: str) -> None:
        path = self.pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def address(self, target: Path) -> str | None:
        """The page of a file or folder of the repository; None if there is no such file."""
        if not target.exists() or not target.is_relative_to(ROOT):
            return None
        inside = target.relative_to(ROOT)
        if inside == Path("README.md"):
            return "index.md"
        if inside.parts[0] == "docs":
            return inside.relative_to("docs").as_posix()
        if str(inside) in KEPT:
            return str(inside)
        return self.page_of(target)

    def page_of(self, source: Path) -> str:
        """The page that shows a file or folder as it is."""
        if source not in self.sources:
            self.sources.append(source)
        return f"source/{source.relative_to(ROOT).as_posix()}.md"

    def follow(self, text: str, source: Path, name: str) -> str:
        """The text of `source` as the page `name`, with links to pages."""

        def link(found: re.Match[str]) -> str:
            path, mark, anchor = found[2].partition("#")
            if not path or re.match(r"[a-z]+:", path):
                return found[0]
            page = self.address((source.parent / path).resolve())
            if page is None:
                return found[0]  # the check of links names it
            relative = os.path.relpath(page, Path(name).parent)
            return f"{found[1]}{relative}{mark}{anchor}{found[3]}"

        parts, end = [], 0
        for fence in FENCE.finditer(text):
            parts += [LINK.sub(link, text[end : fence.start()]), fence[0]]
            end = fence.end()
        return "".join([*parts, LINK.sub(link, text[end:])])

    def source_page(self, target: Path) -> str:
        inside = target.relative_to(ROOT).as_posix()
        if target.is_dir():
            hidden = {"node_modules", "__pycache__", "dist", "package-lock.json"}
            files = [path for path in sorted(target.rglob("*")) if path.is_file() and not hidden & set(path.parts)]
            here = Path("source", inside).parent
            lines = [f"- [{path.relative_to(target)}]({os.path.relpath(self.page_of(path), here)})" for path in files]
            return f"# {inside}/\n\n" + "\n".join(lines) + "\n"
        text = target.read_text(encoding="utf-8")
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
        return f"# {inside}\n\n{fence}{LANGUAGES.get(target.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def navigation(entries: list[Any], api: list[dict[str, str]]) -> Iterator[Any]:
    """The nav of pages.toml with the pages of the Python reference in their place."""
    for entry in entries:
        ((title, value),) = entry.items()
        if value == "@api":
            yield {title: api}
        elif isinstance(value, list):
            yield {title: list(navigation(value, api))}
        else:
            yield entry


def toml_of(value: Any) -> str:
    """A value of settings as TOML, on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_of(key)} = {toml_of(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def listed(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """The title and the path of each page of a nav."""
    for entry in entries:
        ((title, value),) = entry.items()
        if isinstance(value, list):
            yield from listed(value)
        else:
            yield title, value


def first_sentence(text: str) -> str:
    """The first paragraph of a page as one line."""
    body = re.sub(r"^(#.*|<!--.*?-->|:::.*)$", "", FENCE.sub("", text), flags=re.MULTILINE).strip()
    paragraph = " ".join(body.partition("\n\n")[0].split())
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)


def prepare(folder: Path) -> Site:
    """Write all pages and the settings into `folder`."""
    settings = tomllib.loads((HERE / "pages.toml").read_text())
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder)
    for source in sorted((ROOT / "docs").rglob("*")):
        name = source.relative_to(ROOT / "docs").as_posix()
        if source.suffix == ".md":
            site.write(name, site.follow(source.read_text(encoding="utf-8"), source, name))
        elif source.is_file():
            (site.pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, site.pages / name)
    readme = re.sub(r"\(docs/([\w-]+\.(?:png|svg))\)", r"(\1)", (ROOT / "README.md").read_text(encoding="utf-8"))
    site.write("index.md", site.follow(readme, ROOT / "README.md", "index.md"))
    for name in KEPT:
        if (ROOT / name).exists():
            site.write(name, site.follow((ROOT / name).read_text(encoding="utf-8"), ROOT / name, name))
    site.write("reference/commands.md", commands_page())
    site.write("reference/routes.md", routes_page())
    site.write("reference/urls.md", urls_page())
    site.write("reference/errors.md", errors_page(tomllib.loads((HERE / "errors.toml").read_text())))
    site.write("reference/examples.md", site.follow(examples_page(ROOT), ROOT / "examples.md", "reference/examples.md"))
    api = []
    for page in api_pages(settings["api"]):
        site.write(f"reference/python/{page.path}", page.text)
        api.append({page.title: f"reference/python/{page.path}"})
    done = 0
    while done < len(site.sources):  # a page of a folder adds the files in it
        target = site.sources[done]
        site.write(f"source/{target.relative_to(ROOT).as_posix()}.md", site.source_page(target))
        done += 1
    (site.pages / "assets").mkdir(exist_ok=True)
    for name in ("site.css", "site.js"):
        shutil.copyfile(HERE / name, site.pages / "assets" / name)

    nav = [{"streamkit": "index.md"}]
    nav += [{title: list(navigation(entries, api))} for title, entries in settings["nav"].items() if entries]
    config = (HERE / "zensical.toml").read_text()
    added = f'docs_dir = "pages"\nsite_dir = "html"\nnav = {toml_of(nav)}\n'
    config = config.replace("[project]\n", "[project]\n" + added, 1)
    paths = toml_of([str(ROOT), str(ROOT / "backends")])
    config = config.replace("inventories = []", f"inventories = []\npaths = {paths}")
    (folder / "zensical.toml").write_text(config)
    missing = {name for _, name in listed(nav) if not (site.pages / name).exists()}
    named = {name for _, name in listed(nav)}
    lost = {str(path.relative_to(site.pages)) for path in site.pages.rglob("*.md")} - named
    lost = {name for name in lost if not name.startswith("source/")}
    if missing or lost:
        raise SystemExit(
            f"pages.toml names pages that do not exist: {sorted(missing)}; it does not name: {sorted(lost)}"
        )
    write_llms(site, nav)
    return site


def finish(html: Path) -> None:
    """Repair what the theme leaves inaccessible: empty cells of table heads, and two landmarks of one name."""
    for path in (path for path in html.rglob("*.html") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", text)
        text = re.sub(r'(<nav class="md-nav md-nav--primary[^"]*" aria-label=")Navigation"', r'\1Pages"', text)
        path.write_text(text, encoding="utf-8")


def write_llms(site: Site, nav: list[Any]) -> None:
    """llms.txt, a list of the pages for language models, and llms-full.txt with the text of the pages of docs/."""
    lines = ["# streamkit", "", f"> {first_sentence((site.pages / 'index.md').read_text())}"]
    whole = []
    for entry in nav:
        ((section, value),) = entry.items()
        lines += ["", f"## {section}", ""]
        for title, name in [(section, value)] if isinstance(value, str) else listed(value):
            text = (site.pages / name).read_text()
            address = re.sub(r"(^|/)index\.html$", r"\1", name.removesuffix(".md") + "/index.html").replace(
                "index/", ""
            )
            lines.append(f"- [{title}]({address or './'}): {first_sentence(text)}".rstrip(": "))
            if not name.startswith("reference/python/"):
                whole.append(text.rstrip())
    (site.pages / "llms.txt").write_text("\n".join(lines) + "\n")
    (site.pages / "llms-full.txt").write_text("\n\n".join(whole) + "\n")


def render(folder: Path) -> str:
    """Make HTML of the pages below `folder`. Returns all output if anything in it warns, else an empty text."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(folder / "zensical.toml")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    # Its strict mode passes over errors of mkdocstrings, so every line that warns counts.
    warned = re.search(r"warn|error|not found|could not", done.stdout, re.IGNORECASE)
    return done.stdout if done.returncode or warned else ""


def build(folder: Path) -> list[str]:
    """Build the site below `folder`. Returns all problems, none if the site is whole."""
    prepare(folder)
    if output := render(folder):
        return [output]
    finish(folder / "html")
    return problems_of(folder / "html", public_parts(tomllib.loads((HERE / "pages.toml").read_text())["api"]))


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "build" / "site"
    found = build(target)
    if found:
        raise SystemExit("\n".join([*found[:200], f"{len(found)} problems"]))
    print(f"{len(list((target / 'html').rglob('*.html')))} pages: {target / 'html' / 'index.html'}")
