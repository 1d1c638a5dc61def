"""The table's columns, and the packages that read and write them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import MissingDependency

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "DELTA_TYPES", "check_installed", "schema"]

COLUMNS = [
    "number",
    "index",
    "position",
    "segment",
    "sequence",
    "timestamp",
    "trx_id",
    "trx_node",
    "payload",
    "metadata",
]
"""The columns of a file. The partition is in its path."""
DELTA_TYPES = {
    **dict.fromkeys(("partition", "number", "index", "position", "sequence"), ("integer", "long")),
    **dict.fromkeys(("segment", "trx_id", "trx_node"), ("string",)),
    "timestamp": ("timestamp",),
    "payload": ("binary",),
    "metadata": ("map",),
}
"""The names that Delta may give to the type of each column."""


def check_installed() -> None:
    """MissingDependency without the extra."""
    for module in ("deltalake", "pyarrow"):
        if find_spec(module) is None:
            raise MissingDependency(f"the archive needs {module}: pip install 'streamkit-store[archive]'")


def schema() -> pa.Schema:
    """The table's columns."""
    import pyarrow as pa

    def field(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
        return pa.field(name, kind, nullable)

    return pa.schema(
        [
            field("partition", pa.int32()),
            field("number", pa.int64()),
            field("index", pa.int64()),
            field("position", pa.int64()),
            field("segment", pa.string()),
            field("sequence", pa.int64()),
            field("timestamp", pa.timestamp("us", "UTC")),
            field("trx_id", pa.string()),
            field("trx_node", pa.string()),
            field("payload", pa.binary(), nullable=True),
            field("metadata", pa.map_(pa.string(), pa.string()), nullable=True),
        ]
    )
