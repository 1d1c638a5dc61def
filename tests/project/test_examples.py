"""The examples, and the program in the README, run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
SAYS = {
    "01_append_and_read.py": ["order-42 is at sequence 2", 'the latest: {"shipped": true}', "{'by': 'web'}"],
    "02_expected_sequence.py": ["refused, and nothing was written", "left: 30", "alice has 30, not 70"],
    "03_transactions.py": ["neither was written", "segments: order-42 stock-9", "transaction 1: stock-9 #1 +10"],
    "04_page_a_space.py": ["['oslo wed', 'rome wed', 'bonn, late, but not missed']"],
    "05_follow.py": ["lobby #1 written before", "lobby #4 hello 3"],
    "06_event_sourcing.py": ["items={'tea': 2, 'pot': 1}, paid=True, sequence=4", "nothing can be added"],
    "07_idempotency.py": ["delivered again: sequence 1", "entries: 2", "refused:"],
    "09_arrow.py": ["1001 entries", "gate 0  │   251 │   600", "│ hot  ┆ 1    │", "gate 3"],
    "10_forgetting.py": [
        "kept of six: [b'23', b'24', b'25']",
        "erased: 2 entries in 2 segments",
        "missing: space 'sensors': segment 'roof', sequences 1 to 3 were expired",
        "entries in all: 7",
    ],
    "11_queue.py": [
        "sent: password reset attempt 1\nsent: newsletter 1",
        "sent: reminder",
        "4 sent, 2 attempts failed",
        "dead: nobody can read this after 2 attempts: max_deliveries",
        "lag 0 pending 0",
    ],
    "12_groups.py": [
        "shared: 3 and 3",
        "handed back: 3",
        "in order: placed\nin order: paid\nin order: sent",
        "leader: 6 standby: 0",
        "after it ended, standby: 6",
        "['audit', 'billing', 'shipping']",
    ],
    "15_trace.py": [
        "internal checkout\n   client   produce orders\n   producer put emails",
        "consumer process emails  <- linked to: put emails\n   client   produce sent",
    ],
    "13_order_system.py": [
        "refused: it is being paid",
        "order 42 as it was: 2850 and is: 1850",
        "sent: ['order 42, 2 items']",
        "order 42: 0 cents are due",
        "order 43: 900 cents are due",
        'audit: orders/42/3 {"cents":1000}',
    ],
    "14_search_flights.py": [
        "united houston: [1545, 1714]",
        "of UA, the last two: [1714, 1696]",
        "late by ten minutes: [1141, 1714]",
        "USING INDEX 'to'",
        "published: 6 entries",
        "('UA', 6, 36)",
    ],
    "08_leases.py": ["written by the leader: sequence 1", "somebody else:"],
}


def _run(program: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(program)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda program: program.name)
def test_an_example_runs_and_says_what_it_shows(program: Path, tmp_path: Path) -> None:
    output = _run(program, tmp_path)
    missing = [text for text in SAYS[program.name] if text not in output]
    assert not missing, output


def test_the_program_in_the_readme_runs_as_it_is_again_and_again(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert found is not None
    program = tmp_path / "readme.py"
    program.write_text(found[1].replace("file:///tmp/streamkit-readme", f"file://{tmp_path}/store"))
    first = _run(program, tmp_path).splitlines()
    assert first == ['1 {"placed": 3}', '2 {"paid": true}', "after it: ['stock-9']"]
    again = _run(program, tmp_path).splitlines()
    assert again[:2] == first[:2]
    assert len(again) == 5
