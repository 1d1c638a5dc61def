"""The pages: links that lead somewhere, and Python that is Python, with names that exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def _anchors(text: str) -> set[str]:
    """Make anchors from headings: lower case, hyphens for spaces, and no punctuation."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_or_a_heading(page: Path) -> None:
    text = page.read_text()
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        place = page.parent / path if path else page
        if not place.exists() or (anchor and anchor not in _anchors(place.read_text())):
            broken.append(target)
    assert broken == []


def _blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        found += [(f"{page.name}-{number}", block) for number, block in enumerate(blocks, 1)]
    return found


@pytest.mark.parametrize("block", [pytest.param(block, id=name) for name, block in _blocks()])
def test_python_in_the_pages_compiles_and_imports_what_exists(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "streamkit":
            module = import_module(node.module)
            for alias in node.names:
                submodule = find_spec(f"{node.module}.{alias.name}") if hasattr(module, "__path__") else None
                assert hasattr(module, alias.name) or submodule, f"{node.module} has no {alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "streamkit":
                    import_module(alias.name)


def test_every_room_is_on_the_map() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text().partition("## How it is laid out")[2]
    rooms = [path.parent for path in sorted((ROOT / "streamkit").glob("*/__init__.py"))]
    assert [room.name for room in rooms if f"`streamkit/{room.name}/`" not in layout] == []
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert [room for room in sorted(tested) if f"`{room}`" not in layout and f"`{room}/" not in layout] == []


RUN = [
    "writing.md",
    "reading.md",
    "leases.md",
    "views.md",
    "eventsourcing.md",
    "eventsourcing-library.md",
    "dcb.md",
    "types.md",
    "agents.md",
    "langgraph.md",
    "celery.md",
    "groups.md",
    "how-to/lambda.md",
    "how-to/azure-functions.md",
    "how-to/fastapi.md",
    "how-to/tenants.md",
    "how-to/erase-a-person.md",
    "how-to/moving.md",
]
"""Pages whose Python is one program. test_fragments.py has the others."""


@pytest.mark.parametrize("page", RUN)
def test_a_pages_python_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMKIT_URL", f"file://{tmp_path}/store")
    monkeypatch.setenv("STREAMKIT_STORE", "7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    program = tmp_path / "page.py"  # a module, so that annotations are found
    text = "\n".join(blocks).replace("file:///tmp/", f"file://{tmp_path}/")
    program.write_text(
        text if "__future__" in text or "fastapi" in text else "from __future__ import annotations\n" + text
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = {
        "views.md": ["[('order-42', 450)]", "worker-1"],
        "eventsourcing.md": ["500 450\n3 False 3 True\n", "525\n525\n"],
        "eventsourcing-library.md": ["[1, 2, 3]\n3 ['roll over', 'fetch a ball']\n"],
        "agents.md": ["[{'role': 'user', 'content': 'hello'}]", "[{'type': 'user', 'uuid': '1'}]", "1@stream-1"],
        "celery.md": ["5\n"],
        "writing.md": ["2\n1\n3\n1\n1\nnot on one partition\n8\n"],
        "reading.md": [
            "1 b'placed'\n2 b'paid'\norder-43 1 b'placed'\n[]\n[]\n",
        ],
        "leases.md": ["['report 0', 'report 1', 'report 2']\nb'by a grant'\n"],
        "groups.md": ["b'placed' 1\nb'hello'\n[False, False, False]\n"],
        "how-to/lambda.md": [
            "{'statusCode': 200, 'sequence': 1}\n{'statusCode': 200, 'sequence': 1}\nhello\n{'done': 1}"
        ],
        "how-to/azure-functions.md": [],
        "how-to/fastapi.md": ["1\n2\n412\n2\n400\n"],
        "how-to/tenants.md": ["[b'acme']\n2\n1\n"],
        "how-to/erase-a-person.md": ["1\n[1, 1]\n[b'Bob: hi']\n"],
        "how-to/moving.md": ["2\n25 25\n[5, 5]\n[2, 2]\nPaid\n"],
        "langgraph.md": ["['hello', 'answer to hello', 'how are you?', 'answer to how are you?']"],
        "types.md": ["1 placed ['tea']\n2 paid 9.5\n"],
        "dcb.md": ["[True, True, True, True, True, False]"],
    }[page]
    assert all(text in done.stdout for text in wanted), done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"(?<![\w/])tests/[\w/.-]+\w(?![\w*])", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
