"""The modules that `import streamkit` loads. Every process that starts pays for each of them."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "html.entities",
    "asyncio",
    "concurrent.futures",
    "email",
    "http",
    "json",
    "logging",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "traceback",
    "xml",
}
_MOST = 100
"""Modules of streamkit."""


def test_importing_streamkit_loads_few_modules_and_no_heavy_one() -> None:
    program = "import sys; before = set(sys.modules); import streamkit; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "streamkit.store" in loaded
    assert not HEAVY & set(loaded)
    own = [name for name in loaded if name.partition(".")[0] == "streamkit"]
    assert len(own) <= _MOST, "import a module where it is needed, if few programs need it"
