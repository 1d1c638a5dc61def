"""The store's errors as those of the library, with the store's error as the cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ... import errors
from ...dcb import ConditionFailed
from .library import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError, ProgrammingError

__all__ = ["translated"]


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except ConditionFailed as error:
        raise IntegrityError(str(error)) from error
    except (errors.TransientError, errors.OutcomeUnknown, errors.AccessDenied) as error:
        raise OperationalError(str(error)) from error
    except errors.StoreClosed as error:
        raise InterfaceError(str(error)) from error
    except (errors.InvalidName, errors.InvalidRecord, errors.RecordTooLarge, errors.TransactionTooLarge) as error:
        raise DataError(str(error)) from error
    except errors.CrossPartition as error:
        raise ProgrammingError(f"an application needs a space with one partition: {error}") from error
    except errors.StreamkitError as error:
        raise DatabaseError(str(error)) from error
