"""Pages of the reference that are made from the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class ApiPage(NamedTuple):
    title: str
    path: str
    text: str


def public_parts(pages: list[dict[str, Any]]) -> list[str]:
    """The full names that the pages of the Python reference document."""
    return [f"{module}.{name}" for page in pages for module, names in _parts(page) for name in names]


def _parts(page: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for part in page["parts"]:
        yield part["module"], part.get("names") or list(import_module(part["module"]).__all__)


def api_pages(pages: list[dict[str, Any]]) -> Iterator[ApiPage]:
    """Pages of directives that mkdocstrings fills in."""
    for page in pages:
        lines = [f"# {page['title']}", ""]
        for module, names in _parts(page):
            if module != "streamkit":
                lines += [f"## The module {module}", "", _markdown(import_module(module).__doc__ or ""), ""]
            for name in names:
                lines += [
                    f"::: {module}.{name}",
                    "    options:",
                    f"      heading_level: {2 if module == 'streamkit' else 3}",
                    "",
                ]
        yield ApiPage(page["title"], page["path"], "\n".join(lines))


def _markdown(docstring: str) -> str:
    return inspect.cleandoc(docstring)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def commands_page() -> str:
    """The commands with their arguments and options, as `--help` has them."""
    import typer.main

    from streamkit.cli.app import app

    program: Any = typer.main.get_command(app)
    lines = [
        "# The command line: every option",
        "",
        "Look up a command, an argument or an option of `streamkit`. This page has the text of `--help`.",
        "[The command line](../cli.md) explains how to use the commands.",
        "",
        *_parameters(program),
    ]
    for name, command in sorted(program.commands.items()):
        several = getattr(command, "commands", None)
        if several is None:
            lines += _command(f"streamkit {name}", command)
            continue
        for inner, one in sorted(several.items()):
            lines += _command(f"streamkit {name} {inner}", one)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    if command.hidden:
        return
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    words = " ".join(_argument(one) if one.required else f"[{_argument(one)}]" for one in arguments)
    yield from (f"## {name}", "", "```text", f"{name} {words} [OPTIONS]".replace("  ", " "), "```", "")
    yield from (_markdown(command.help or ""), "")
    yield from _parameters(command)


def _argument(parameter: Any) -> str:
    return f"{parameter.metavar or parameter.name.upper()}{'…' if parameter.nargs == -1 else ''}"


def _parameters(command: Any) -> Iterator[str]:
    rows = []
    for one in command.params:
        if one.hidden:
            continue
        if not one.opts[0].startswith("-"):
            rows.append((f"`{_argument(one)}`", one.help or "", ""))
            continue
        hint = "" if one.is_flag else f" {one.metavar or one.name.upper()}"
        names = ", ".join(f"`{text}{hint}`" for text in (*one.opts, *one.secondary_opts))
        shown = isinstance(one.default, str | int | float) and not isinstance(one.default, bool)
        rows.append((names, one.help or "", f"`{one.default}`" if shown else ""))
    if rows:
        yield from ("| argument or option | meaning | default |", "|---|---|---|")
        yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)
        yield ""


def routes_page() -> str:
    """The routes of the server, from its OpenAPI document."""
    from streamkit.serve import app
    from streamkit.serve.openapi import document

    application: Any = app("memory://", topics=True)
    described = document(application.router)
    lines = [
        "# The server: every route",
        "",
        "Look up a path of the server. [The server](../serve.md) explains how to use it. A server that runs has the",
        "same document, with the schemas of all bodies, at `/openapi.json`.",
        "",
        "| method | path | what it does |",
        "|---|---|---|",
    ]
    for path, methods in sorted(described["paths"].items()):
        for method, operation in methods.items():
            if method in ("get", "put", "post", "delete", "patch", "head"):
                lines.append(f"| {method.upper()} | `{path}` | {_cell(operation.get('summary', ''))} |")
    return "\n".join(lines) + "\n"


def urls_page() -> str:
    """The URLs of stores with their options, from the docstrings of the backends."""
    lines = [
        "# URLs and their options",
        "",
        "Choose the place of the stores with a URL: for `streamkit.connect(url)`, `--url` and `STREAMKIT_URL`.",
        "",
        "| variable | meaning |",
        "|---|---|",
        "| `STREAMKIT_URL` | the place of the stores; `./streamkit-data` if it is not set |",
        "| `STREAMKIT_STORE` | the UUID of the store, for the command line, the server and adapters |",
        "| `STREAMKIT_ARCHIVE` | the place of the archives, if they are not beside the stores |",
        "",
    ]
    for scheme, package in (("file", "local"), ("s3", "s3"), ("azure and azurite", "azure"), ("memory", "memory")):
        lines += [f"## {scheme}", "", _markdown(import_module(f"streamkit_{package}").__doc__ or ""), ""]
    return "\n".join(lines)


def errors_page(table: dict[str, dict[str, str]]) -> str:
    """The errors with their remedies, and the refusals of the server."""
    from streamkit import errors
    from streamkit.serve.problems import CODES, ERRORS

    statuses = {kind: (status, code) for kind, status, code in ERRORS}
    lines = [
        "# Errors",
        "",
        "Find the error that you got, and do what its row says. Catch the class that says what you can do:",
        "every `TransientError` is safe to retry, and no `PermanentError` is. The [classes](python/errors.md) have",
        "attributes.",
        "",
        "| error | happens if | do this | retry | over HTTP |",
        "|---|---|---|---|---|",
    ]
    for name, remedy in table["remedies"].items():
        kind: Any = getattr(errors, name)
        happened = _cell(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0])
        status, code = statuses.get(kind, (0, ""))
        http = f"{status} `{code}`" if status else ""
        link = f"[`{name}`](python/errors.md#streamkit.errors.{name})"
        retry = "yes" if kind.retryable else "no"
        lines.append(f"| {link} | {happened} | {_cell(remedy)} | {retry} | {http} |")
    lines += ["", "## Refusals of the server", ""]
    lines += ["The server answers with a problem document: `type` is `urn:streamkit:` and the code.", ""]
    lines += ["| code | status | do this |", "|---|---|---|"]
    lines += [f"| `{code}` | {CODES[code]} | {_cell(remedy)} |" for code, remedy in table["codes"].items()]
    return "\n".join(lines) + "\n"


def examples_page(root: Path) -> str:
    """The numbered examples, with the first line of each docstring."""
    lines = [
        "# Examples",
        "",
        "Run a small program for a task: `python examples/01_append_and_read.py` in a checkout.",
        "",
    ]
    lines += ["| example | shows |", "|---|---|"]
    for path in sorted((root / "examples").glob("[0-9][0-9]_*.py")):
        text = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
        lines.append(f"| [{path.stem}](examples/{path.name}) | {_cell(text)} |")
    folders = sorted(path for path in (root / "examples").iterdir() if path.is_dir() and re.match(r"[a-z]", path.name))
    lines += ["", "Programs of several files:", ""]
    lines += [f"- [{path.name}](examples/{path.name})" for path in folders if any(path.rglob("*.py"))]
    return "\n".join(lines) + "\n"
