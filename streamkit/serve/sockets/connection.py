"""A WebSocket that is open: its messages, the exchanges that they begin, and its end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ...decoders import json_decoder
from ..access import Access
from ..problems import Problem, problem_of
from ..responses import Gone, Receive, Send
from ..streams import OpenStream
from .call import LONGEST_ID, Call, Interface, Message
from .exchange import Exchange, answer_text

if TYPE_CHECKING:
    from ..application import Application

__all__ = ["Socket"]

_log = logging.getLogger("streamkit.serve")

_AT_ONCE = 100
"""Requests that are handled at once, apart from those that wait. Further messages stay in the connection."""
_SPREAD = 5_000
"""Milliseconds over which the clients of a process that ends come back to the others."""
_LAST = 5.0
"""Seconds that requests have to end when the connection does."""
NORMAL, NOT_TEXT, NO_RIGHTS, TOO_LARGE, RESTART = 1000, 1003, 1008, 1009, 1012
"""Codes with which a connection ends."""
_message = json_decoder(Message)


class _Receipt(msgspec.Struct):
    receipt: str
    action: str = "ack"


class _Settled(msgspec.Struct):
    settle: list[_Receipt] = []
    auto_ack: bool = False


class _Received(msgspec.Struct):
    deliveries: list[_Receipt] = []


class Socket(OpenStream):
    """One connection. It counts as a stream, and so does each of its subscriptions."""

    __slots__ = (
        "_begun",
        "_code",
        "_held",
        "_interface",
        "_last",
        "_lock",
        "_room",
        "_running",
        "_size",
        "_subscriptions",
        "application",
        "headers",
    )

    def __init__(
        self,
        application: Application,
        send: Send,
        receive: Receive,
        abort: Callable[[], object] | None,
        access: Access,
        headers: list[tuple[bytes, bytes]],
        interface: Interface,
    ) -> None:
        super().__init__(send, receive, application.service.ticker, False, abort, access)
        self.application = application
        self.headers = headers
        """The headers of each of its requests."""
        self._interface = interface
        self._lock = asyncio.Lock()
        self._running: set[Exchange] = set()
        self._subscriptions: dict[bytes, Exchange] = {}
        """The exchanges that wait for new entries: subscriptions, and requests that wait."""
        self._last: dict[str, Exchange] = {}
        """The latest exchange for each text of `Call.order`."""
        self._held: dict[str, set[str]] = {}
        """The receipts that the client has not settled, by the path of their group."""
        self._room = asyncio.Event()
        self._size = 0
        """Bytes of the messages that are being handled."""
        self._code = NORMAL

    async def run(self) -> None:
        """Handle messages until the client leaves, the process ends, or the rights of the client do."""
        service = self.application.service
        self._ticker.add(self)
        self.written_at = asyncio.get_running_loop().time()
        reading = asyncio.ensure_future(self._read())
        try:
            while not (service.is_draining or self.is_over or self._code != NORMAL):
                await self.wait()
                if self.is_silent:
                    self.is_silent, self.written_at = False, asyncio.get_running_loop().time()
            reading.cancel()
            await self._end(service.is_draining)
        except Gone:
            pass
        finally:
            reading.cancel()
            await self._leave()

    async def _end(self, is_draining: bool) -> None:
        """Have everything end by itself, say goodbye, and close."""
        if self._code == NORMAL:
            self._code = RESTART if is_draining else NO_RIGHTS
            running = [one.task for one in self._running if one.task is not None]
            if running:
                await asyncio.wait(running, timeout=_LAST)
            reason, retry = ("drain", random.randrange(100, _SPREAD)) if is_draining else ("rotate", 0)
            await self.write_text(b'{"event":"bye","data":{"reason":"%b","retry":%d}}' % (reason.encode(), retry))
        await self._close(self._code)

    async def _close(self, code: int) -> None:
        async with self._lock:
            if not self.gone:
                self.gone = True
                await self._send({"type": "websocket.close", "code": code, "reason": ""})

    async def _leave(self) -> None:
        """End the exchanges, and give back the deliveries that the client has not settled."""
        self.gone = True
        for exchange in self._running:
            exchange.leave()
        running = [one.task for one in self._running if one.task is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=_LAST)
            for task in late:
                task.cancel()
        for path, receipts in self._held.items():
            body = msgspec.json.encode({"settle": [{"receipt": each, "action": "release"} for each in receipts]})
            if receipts:
                await Exchange(self, b"null", Call(path=f"{path}/settle", body=body)).run()

    # -- messages -----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        limits = self.application.service.limits
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self.gone = True
                break
            text = message.get("text")
            if text is None:
                self._code = NOT_TEXT
                break
            data = text.encode()
            if limits.message_bytes and len(data) > limits.message_bytes:
                self._code = TOO_LARGE
                break
            try:
                await self._begin(data)
            except Gone:
                break
            while len(self._running) - len(self._subscriptions) >= _AT_ONCE or (
                limits.message_bytes and self._size > limits.message_bytes
            ):
                self._room.clear()
                await self._room.wait()
        self.wake()

    async def _begin(self, data: bytes) -> None:
        """Begin the call of a message. A wrong message is answered with its error."""
        id = b"null"
        try:
            found = _decoded(data)
            if type(found.id) is str and len(found.id) > LONGEST_ID:
                raise Problem("invalid-argument", f"an id has at most {LONGEST_ID} characters")
            id = msgspec.json.encode(found.id)
            if found.op == "ping":
                await self.write_text(b'{"id":%b,"status":200}' % id)
            elif found.op == "unsubscribe":
                self._unsubscribe(id, data)
            else:
                self._start(id, self._interface.call_of(found.op, data), len(data))
        except Gone:
            raise
        except Exception as error:
            if problem_of(error).code == "internal":
                _log.exception("a message of a WebSocket failed")
            await self.write_text(answer_text(id, self._interface.refusal(error)))

    def _start(self, id: bytes, call: Call, size: int) -> None:
        exchange = Exchange(self, id, call)
        if call.waits or call.is_subscription:
            most = self.application.service.limits.subscriptions
            if id in self._subscriptions:
                raise Problem("conflict", "the connection has a subscription with this id; take another one")
            if most and len(self._subscriptions) >= most:
                raise Problem("too-many-requests", f"more than {most} subscriptions of a connection")
        self.application.service.gate.take_bytes(size)
        if call.waits or call.is_subscription:
            self._subscriptions[id] = exchange
        before = {one.task for key in call.order if (one := self._last.get(key)) is not None and one.task is not None}
        for key in call.order:
            self._last[key] = exchange
        self._running.add(exchange)
        self._size += size

        async def run() -> None:
            if before:
                await asyncio.wait(before)
            await exchange.run()

        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(exchange)
            if self._subscriptions.get(id) is exchange:
                del self._subscriptions[id]
            for key in call.order:
                if self._last.get(key) is exchange:
                    del self._last[key]
            self._size -= size
            self.application.service.gate.give_bytes(size)
            self._room.set()

        exchange.task = asyncio.ensure_future(run())
        exchange.task.add_done_callback(ended)

    def _unsubscribe(self, id: bytes, data: bytes) -> None:
        exchange = self._subscriptions.get(_wanted(data))
        if exchange is None or not exchange.call.is_subscription:
            raise Problem("not-found", "the connection has no subscription with this id")
        exchange.leave(id)

    # -- answers ------------------------------------------------------------------------------------------------

    async def write_text(self, data: bytes) -> None:
        """Send one message, after those that wait before it. Gone if the client has left."""
        time = asyncio.get_running_loop().time
        async with self._lock:
            if self.gone:
                raise Gone
            self.writing_since = time()
            try:
                await self._send({"type": "websocket.send", "text": data.decode()})
            except Exception as error:  # each server has its own
                self.gone = True
                self.wake()
                raise Gone from error
            finally:
                self.writing_since = None
            self.written_at = time()

    def heed(self, exchange: Exchange) -> None:
        """Note the deliveries that an answer holds, and those that the request has settled."""
        group = exchange.call.group
        if not group or exchange.status != 200:
            return
        held = self._held.setdefault(group, set())
        given = json_decoder(_Settled).decode(exchange.call.body or b"{}")
        held.difference_update(each.receipt for each in given.settle if each.action != "extend")
        if not given.auto_ack:
            held.update(each.receipt for each in json_decoder(_Received).decode(exchange.body).deliveries)


class _Unsubscribe(Message, forbid_unknown_fields=True):
    subscription: str | int


_unsubscribe = json_decoder(_Unsubscribe)


def _decoded(data: bytes) -> Message:
    try:
        return _message.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem("invalid-body", f"a message is a JSON object with `id` and `op`: {error}") from None


def _wanted(data: bytes) -> bytes:
    try:
        return msgspec.json.encode(_unsubscribe.decode(data).subscription)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem("invalid-body", f"the message is not valid: {error}") from None
