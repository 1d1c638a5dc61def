"""The end of a connection whose client does not read: a part of the protocols."""

from __future__ import annotations

import asyncio

__all__ = ["CutsUnread"]


class CutsUnread(asyncio.Protocol):
    """Cuts a connection if its client reads no written bytes for `write_seconds`; 0: never.

    It is the first base of a protocol of uvicorn, which sets `transport` and `loop`.
    """

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    write_seconds = 0.0
    _unread: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def _watch_reader(self, before: int = 0) -> None:
        size = self.transport.get_write_buffer_size()
        if size == before:
            self.transport.abort()
        elif self.write_seconds:
            self._unread = self.loop.call_later(self.write_seconds, self._watch_reader, size)

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
