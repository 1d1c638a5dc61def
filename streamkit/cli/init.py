"""The command `init`: a new project with a function, a queue, a view, an archive, and the templates of a cloud."""

from __future__ import annotations

import shlex
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from streamkit import PermanentError, __version__
from streamkit.terminal import amount

from .output import print_line

__all__ = ["init"]


class Cloud(StrEnum):
    """A cloud that the project is deployed to."""

    aws = "aws"
    azure = "azure"


_ALWAYS = ("shop.py", "worker.py", "totals.py", "nightly.py", "handler.py", "test_shop.py", "README.md")
_OF_CLOUD = {
    Cloud.aws: ("deploy.py", "template.yaml", "aws_requirements", "aws_README"),
    Cloud.azure: ("function_app.py", "host.json", "main.bicep", "azure_requirements", "azure_README"),
}
_TARGETS = {"README": "README.md", "requirements": "requirements.txt"}
"""Files of a cloud that have another name in a project. The README is appended to that of all projects."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The new project.", show_default=False)],
    cloud: Annotated[Cloud, typer.Option("--cloud", help="The cloud of the functions and templates.")] = Cloud.aws,
) -> None:
    """Make a project: a function, a queue with its worker, a view, an archive, tests, and templates for a cloud.

    The tutorial explains each of its files.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PermanentError(f"{folder} exists and is not empty: name a new folder")
    written = project_files(cloud)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    print_line(f"{amount(len(written), 'file')} in {folder}: {', '.join(sorted(written))}")
    print_line(f"next: cd {shlex.quote(str(folder))}, and read README.md")


def project_files(cloud: Cloud) -> dict[str, str]:
    """The files of a project by name, with a new store in the README."""
    store = str(uuid4())
    found: dict[str, str] = {}
    for name in (*_ALWAYS, *_OF_CLOUD[cloud]):
        source = files("streamkit.cli").joinpath("project", name)
        if not source.is_file():
            source = files("streamkit.cli").joinpath("project", f"{name}.txt")
        text = source.read_text(encoding="utf-8")
        if source.name.endswith(("README.txt", "README.md.txt", "requirements.txt")):
            text = text.replace("{store}", store)
            text = text.replace("{wheel}", f"./streamkit_store-{__version__}-py3-none-any.whl")
        target = _TARGETS.get(name.partition("_")[2], name)
        found[target] = found.get(target, "") + text
    return found
