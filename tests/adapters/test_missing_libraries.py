"""An adapter whose library is not installed names the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("adapter", "library", "extra"),
    [
        ("langgraph", "langgraph", "langgraph"),
        ("langgraph", "langchain_core", "langgraph"),
        ("kombu", "kombu", "kombu"),
        ("eventsourcing", "eventsourcing", "eventsourcing"),
    ],
)
def test_an_adapter_without_its_library_names_the_extra(adapter: str, library: str, extra: str) -> None:
    name = f"streamkit.adapters.{adapter}"
    program = f"import sys; sys.modules[{library!r}] = None; import {name}"  # as if it were not installed
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"streamkit.errors.MissingDependency: {name} needs {adapter}: pip install")
    assert f"'streamkit-store[{extra}]'" in said
