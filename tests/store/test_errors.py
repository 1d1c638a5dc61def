"""The errors themselves: their classes, and their way between processes."""

from __future__ import annotations

import pickle
from uuid import uuid4

import streamkit
from streamkit import PermanentError, SequenceMismatch, StreamkitError, errors


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


def test_errors_survive_pickling() -> None:
    id = uuid4()
    mismatch = pickle.loads(pickle.dumps(SequenceMismatch("message", 7, 9)))
    assert (str(mismatch), mismatch.expected, mismatch.actual) == ("message", 7, 9)
    unknown = pickle.loads(pickle.dumps(streamkit.OutcomeUnknown("message", id)))
    assert (str(unknown), unknown.transaction_id) == ("message", id)
