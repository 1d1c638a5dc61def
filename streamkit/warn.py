"""Log problems that are no error for the caller, and notes, to the logger `streamkit`."""

from __future__ import annotations

__all__ = ["tell", "warn", "warn_of"]


def warn(message: str, *args: object) -> None:
    import logging  # not worth its import where all goes well

    logging.getLogger("streamkit").warning(message, *args)


def warn_of(error: BaseException, message: str, *args: object) -> None:
    """Like `warn`, with the traceback of an exception."""
    import logging

    logging.getLogger("streamkit").warning(message, *args, exc_info=error)


def tell(message: str, *args: object) -> None:
    import logging

    logging.getLogger("streamkit").info(message, *args)
