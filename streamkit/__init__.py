"""streamkit: an event-stream store without servers. `connect` is where to begin."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AccessDenied,
    CorruptData,
    CrossPartition,
    DeliveryLost,
    EntriesRemoved,
    Fenced,
    GroupExists,
    InvalidName,
    InvalidOffset,
    InvalidRecord,
    LeaseLost,
    LeaseNotAcquired,
    MissingDependency,
    OutcomeUnknown,
    PermanentError,
    RecordTooLarge,
    SequenceMismatch,
    SpaceExists,
    SpaceFull,
    StoreClosed,
    StreamkitError,
    Throttled,
    TransactionIdMismatch,
    TransactionTooLarge,
    TransientError,
    Unavailable,
    UnsupportedVersion,
)
from .gaps import Gap
from .importing import IMPORTING
from .lexkey import LexKey, Unsigned
from .model import TRX, Entry, Record, SegmentStatus
from .retention import Retention
from .statistics import Statistics

if TYPE_CHECKING:
    from . import backend, client, leases, names, space, store, transaction  # noqa: F401
    from .client import Client, connect
    from .leases import Lease, LeaseGrant
    from .space import SpaceSettings
    from .store import Store
    from .transaction import Transaction
    from .views.view import View

__version__ = "0.1.0"

__all__ = [
    "TRX",
    "AccessDenied",
    "Client",
    "CorruptData",
    "CrossPartition",
    "DeliveryLost",
    "EntriesRemoved",
    "Entry",
    "Fenced",
    "Gap",
    "GroupExists",
    "InvalidName",
    "InvalidOffset",
    "InvalidRecord",
    "Lease",
    "LeaseGrant",
    "LeaseLost",
    "LeaseNotAcquired",
    "LexKey",
    "MissingDependency",
    "OutcomeUnknown",
    "PermanentError",
    "Record",
    "RecordTooLarge",
    "Retention",
    "SegmentStatus",
    "SequenceMismatch",
    "SpaceExists",
    "SpaceFull",
    "SpaceSettings",
    "Statistics",
    "Store",
    "StoreClosed",
    "StreamkitError",
    "Throttled",
    "Transaction",
    "TransactionIdMismatch",
    "TransactionTooLarge",
    "TransientError",
    "Unavailable",
    "Unsigned",
    "UnsupportedVersion",
    "View",
    "__version__",
    "connect",
]


_LATER = {
    "Client": "client",
    "Lease": "leases",
    "LeaseGrant": "leases",
    "SpaceSettings": "space",
    "Store": "store",
    "Transaction": "transaction",
    "View": "views.view",
    "connect": "client",
}
"""The names that stand on the engine, and their modules. A program that only makes records never loads the engine."""
_MODULES = frozenset(("backend", "client", "leases", "names", "space", "store", "transaction"))
"""Modules that a program may name after `import streamkit` alone, such as `streamkit.backend`."""


if not TYPE_CHECKING:  # a type checker tells of names that are not there

    def __getattr__(name: str) -> Any:
        """Import a public name, or the module of one, on its first use."""
        module = name if name in _MODULES else _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with IMPORTING:
            found = import_module(f".{module}", __name__)
        if name not in _MODULES:
            found = globals()[name] = getattr(found, name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
