"""The memory that Arrow holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Everything that Arrow holds while the test runs."""
    import pyarrow as pa

    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)
