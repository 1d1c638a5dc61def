"""The errors themselves: their classes, and their way between processes."""

from __future__ import annotations

import gc
import pickle
from uuid import uuid4

import pytest

import streamkit
from streamkit import PermanentError, Record, SequenceMismatch, Store, StreamkitError, errors


def test_the_tree_of_errors_is_the_contracts() -> None:
    transient = {"Unavailable", "Throttled"}
    values = {
        *("InvalidName", "InvalidOffset", "InvalidRecord", "RecordTooLarge", "TransactionTooLarge", "CrossPartition"),
    }
    permanent = values | {
        *("SequenceMismatch", "TransactionIdMismatch", "Fenced", "LeaseNotAcquired", "LeaseLost", "SpaceExists"),
        *("CorruptData", "AccessDenied", "StoreClosed", "UnsupportedVersion", "MissingDependency"),
        *("EntriesRemoved", "SpaceFull", "GroupExists", "DeliveryLost"),
    }
    tree = {"StreamkitError", "TransientError", "OutcomeUnknown", "PermanentError"} | transient | permanent
    assert set(errors.__all__) == tree
    for name in tree:
        kind = getattr(streamkit, name)
        assert issubclass(kind, StreamkitError)
        assert issubclass(kind, PermanentError) == (name in permanent | {"PermanentError"})
        assert issubclass(kind, ValueError) == (name in values)
        assert kind.retryable == (name in transient | {"TransientError"})


def drop(store: Store) -> None:
    store.transaction("orders").produce("order-42", [Record(b"placed")])
    gc.collect()


def test_records_of_a_dropped_transaction_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Python does not show the ResourceWarning unless it is asked to."""
    with streamkit.connect(f"memory://{uuid4()}") as client, client.store(uuid4()) as store:
        with pytest.warns(ResourceWarning, match="dropped with 1 part, and nothing was written"):
            drop(store)
        assert list(store.get_spaces()) == []
    assert ["dropped with 1 part, and nothing was written" in text for text in caplog.messages] == [True]


def test_an_id_that_is_none_is_named() -> None:
    says = r"'zz' is not a transaction id: pass OutcomeUnknown\.transaction_id"
    with streamkit.connect(f"memory://{uuid4()}") as client, pytest.raises(ValueError, match=says):
        client.store(uuid4()).outcome("zz")


def test_errors_survive_pickling() -> None:
    id = uuid4()
    mismatch = pickle.loads(pickle.dumps(SequenceMismatch("message", 7, 9)))
    assert (str(mismatch), mismatch.expected, mismatch.actual) == ("message", 7, 9)
    unknown = pickle.loads(pickle.dumps(streamkit.OutcomeUnknown("message", id)))
    assert (str(unknown), unknown.transaction_id) == ("message", id)
