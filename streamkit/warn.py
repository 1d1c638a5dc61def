"""Log problems that are no error for the caller, and notes, to the logger `streamkit`.

Every log record has the fields `store`, `space` and `transaction`, for formatters and JSON logs, or None.
"""

from __future__ import annotations

from uuid import UUID

__all__ = ["log_info", "warn", "warn_of"]


def warn(
    message: str,
    *args: object,
    store: UUID | None = None,
    space: str | None = None,
    transaction: UUID | int | None = None,
) -> None:
    """Log a warning. `transaction`: its id, or its number in the partition."""
    import logging  # not worth its import where all goes well

    logging.getLogger("streamkit").warning(message, *args, extra=_fields(store, space, transaction))


def warn_of(
    error: BaseException,
    message: str,
    *args: object,
    store: UUID | None = None,
    space: str | None = None,
    transaction: UUID | int | None = None,
) -> None:
    """Warn as `warn` does, with the traceback of an exception."""
    import logging

    fields = _fields(store, space, transaction)
    logging.getLogger("streamkit").warning(message, *args, exc_info=error, extra=fields)


def log_info(
    message: str,
    *args: object,
    store: UUID | None = None,
    space: str | None = None,
    transaction: UUID | int | None = None,
) -> None:
    """Log a note."""
    import logging

    logging.getLogger("streamkit").info(message, *args, extra=_fields(store, space, transaction))


def _fields(store: UUID | None, space: str | None, transaction: UUID | int | None) -> dict[str, str | None]:
    return {
        "store": None if store is None else str(store),
        "space": space,
        "transaction": None if transaction is None else str(transaction),
    }
