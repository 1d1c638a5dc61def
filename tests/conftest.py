"""Fixtures are plug-ins: one file for each server that tests need."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = [
    "fix_aio",
    "fix_azurite",
    "fix_covered",
    "fix_local",
    "fix_proxy",
    "fix_s3",
    "fix_spark",
    "fix_stores",
    "fix_archiving",  # after what it imports
]
