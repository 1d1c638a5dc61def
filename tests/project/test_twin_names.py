"""The names of the compiled twin that Python calls. Where it is not built, nothing else tells that one is missing."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = (re.compile(r"\b_?twin\.([A-Za-z]\w*)"), re.compile(r"\b_twin\.reader\([^\n]*\)\.(\w+)"))
NAMES = re.compile(r"wrap_pyfunction!\(\w+::(\w+)|add_class::<\w+::(\w+)>")


def test_the_twin_has_every_name_that_python_calls() -> None:
    rust = {path.name: path.read_text() for path in (ROOT / "speed" / "src").glob("*.rs")}
    public = {name for found in NAMES.findall(rust["lib.rs"]) for name in found if name}
    methods = {
        name
        for text in rust.values()
        for block in re.findall(r"#\[pymethods\]\nimpl .*?\n}\n", text, re.DOTALL)
        for name in re.findall(r"\n    (?:pub )?fn (\w+)", block)
    }
    modules = [path.read_text() for path in (ROOT / "streamkit").rglob("*.py")]
    called = {name for call in CALLS for text in modules for name in call.findall(text)}
    assert {"decompress", "decode_block", "pack_rows", "decode_at", "reader", "take", "Records"} <= called
    assert called <= public | methods
