"""What went wrong and is no error for the caller goes to the logger `streamkit`."""

from __future__ import annotations

__all__ = ["warn"]


def warn(message: str, *args: object) -> None:
    import logging  # not worth its import where all goes well

    logging.getLogger("streamkit").warning(message, *args)
