"""HTTP of the reserved paths, `__ds/…`: subscriptions, their wakes, and the keys that sign webhooks."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from ...decoders import json_decoder
from ..access import Access
from ..responses import Answer, json_answer
from .dispatcher import Dispatcher
from .registry import Registry
from .state import Refused, parse_offset
from .subscriptions import Ack, Link, Subscription, acked, check_config, pending, streams_of
from .webhooks import check_url

if TYPE_CHECKING:
    from ..request import Request
    from .streams import Streams

__all__ = ["Control"]


_BYTES = 1 << 20
"""The largest body: its values take many times the memory."""


class _Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an ack or a callback."""

    wake_id: str
    generation: int
    acks: tuple[Ack, ...] = ()
    done: bool = False


class _Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: str


class _Paths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    streams: tuple[str, ...]


class Control:
    """The reserved resources of one store's streams."""

    def __init__(self, streams: Streams, *, loopback: bool) -> None:
        self.streams = streams
        self._loopback = loopback
        self._started = False
        self.registry = Registry(streams)
        self.dispatcher = Dispatcher(streams, self.registry, loopback=loopback)

    def start(self, upkeep_seconds: float) -> None:
        """Begin the work in the background; again is fine."""
        if not self._started:
            self._started = True
            self.dispatcher.start()
            self.streams.expiry.start(upkeep_seconds)

    def close(self) -> None:
        """End the background work."""
        self.dispatcher.close()
        self.streams.expiry.close()

    async def answer(self, request: Request, path: str, base_url: str) -> Answer:
        """The answer to a request for `path`, the raw path behind `__ds/`; `base_url`: where the streams are."""
        try:
            return await self._answer(request, path, base_url)
        except Refused as refused:
            return _refusal(refused)

    async def answer_wake(self, request: Request, path: str, base_url: str) -> Answer:
        """The answer to a caller with the token of a wake. Its requests are limited like those of a key."""
        id = unquote(path.split("/")[1])
        try:
            await self._token(id, request)
        except Refused as refused:
            return _refusal(refused)  # the body of a caller without a token is not read
        gate, access = request.service.gate, Access(id=f"wake {self.streams.store.id} {id}")
        gate.enter(access)
        try:
            return await self.answer(request, path, base_url)
        finally:
            gate.leave(access)

    async def _answer(self, request: Request, path: str, base_url: str) -> Answer:
        method, parts = request.method, path.split("/")
        if path == "jwks.json" and method in ("GET", "HEAD"):
            keys = {"keys": [(await self.registry.signer()).jwk]}
            headers = ((b"content-type", b"application/jwk-set+json"), (b"cache-control", b"public, max-age=300"))
            return Answer(200, msgspec.json.encode(keys), headers)
        if parts[0] != "subscriptions" or len(parts) < 2 or not parts[1]:
            raise Refused(404, "there is no such control resource", code="NOT_FOUND")
        id, rest = unquote(parts[1]), parts[2:]
        body = await request.body()
        if len(body) > _BYTES:
            raise Refused(413, f"the body has at most {_BYTES} bytes", code="INVALID_REQUEST")
        match method, rest:
            case "PUT", []:
                return await self._create(id, body, base_url)
            case "GET", []:
                return json_answer(await self._shown(await self._find(id), base_url))
            case "DELETE", []:
                await self.registry.delete(id)
                return Answer(204)
            case "POST", ["streams"]:
                await self._link(id, _decode(body, _Paths).streams)
                return Answer(204)
            case "DELETE", ["streams", *named] if named:
                await self._unlink(id, unquote("/".join(named)).strip("/"))
                return Answer(204)
            case "POST", ["claim"]:
                return json_answer(await self._claim(id, _decode(body, _Claim).worker))
            case "POST", ["ack" | "callback"]:
                return await self._report(id, request, _decode(body, _Report))
            case "POST", ["release"]:
                await self._release(id, request, _decode(body, _Report))
                return Answer(204)
        raise Refused(405 if len(rest) < 2 else 404, "there is no such control resource or method", code="NOT_FOUND")

    # -- the subscription ---------------------------------------------------------------------------------------

    async def _find(self, id: str) -> Subscription:
        found = (await self.registry.find(id)).subscription
        assert found is not None
        return found

    async def _create(self, id: str, body: bytes, base_url: str) -> Answer:
        config = check_config(body)
        if len(id) > 255 or not id.isprintable():
            raise Refused(400, "the id has at most 255 printable characters", code="INVALID_REQUEST")
        if config.webhook is not None:
            check_url(config.webhook.url, loopback=self._loopback)
        new, subscription = await self.registry.create(id, config, self.streams.clock.now(), base_url)
        self.dispatcher.start()
        return json_answer(await self._shown(subscription, base_url), 201 if new else 200)

    async def _shown(self, subscription: Subscription, base_url: str) -> dict[str, Any]:
        config = subscription.config
        shown: dict[str, Any] = {
            "id": subscription.id,
            "subscription_id": subscription.id,
            "type": config.type,
            "pattern": config.pattern,
            "streams": streams_of(subscription),
            "webhook": None,
            "wake_stream": config.wake_stream,
            "lease_ttl_ms": config.lease_ttl_ms,
            "created_at": datetime.fromtimestamp(subscription.created / 1000, UTC).isoformat().replace("+00:00", "Z"),
            "status": "failed" if subscription.failures else "active",
            "description": config.description,
        }
        if config.webhook is not None:
            signing = {
                "alg": "ed25519",
                "kid": (await self.registry.signer()).kid,
                "jwks_url": f"{base_url}/__ds/jwks.json",
            }
            shown["webhook"] = {"url": config.webhook.url, "signing": signing}
        return shown

    async def _link(self, id: str, paths: tuple[str, ...]) -> None:
        names = {path.strip("/") for path in paths}
        tails = await self.registry.tails(names)

        def change(now: Subscription) -> Subscription:
            links = dict(now.links)
            for path in names:
                known = links.get(path)
                links[path] = Link(tails.get(path, 0), True, False) if known is None else replace(known, explicit=True)
            return replace(now, links=links)

        await self.registry.change(id, change)

    async def _unlink(self, id: str, path: str) -> None:
        def change(now: Subscription) -> Subscription:
            links = dict(now.links)
            known = links.pop(path, None)
            if known is not None and known.glob:
                links[path] = replace(known, explicit=False)
            return replace(now, links=links)

        await self.registry.change(id, change)

    # -- wakes --------------------------------------------------------------------------------------------------

    async def _claim(self, id: str, worker: str) -> dict[str, Any]:
        subscription = await self._find(id)
        if subscription.config.type != "pull-wake":
            raise Refused(400, "only a subscription of the type pull-wake can be claimed", code="INVALID_REQUEST")
        tails = await self.registry.tails(subscription.links)

        def change(now: Subscription) -> Subscription:
            at = self.streams.clock.now()
            if now.holder is not None and now.until > at:
                raise Refused(
                    409,
                    "another worker holds the lease",
                    code="ALREADY_CLAIMED",
                    fields={"current_holder": now.holder, "generation": now.generation},
                )
            if not pending(now, tails):
                raise Refused(409, "no stream has pending messages", code="NO_PENDING_WORK")
            if now.wake is None or now.holder is not None:
                now = now.woken(f"w_{secrets.token_hex(12)}", at, tails)
            return replace(now, snapshot=tails).claimed(worker, at)

        held = await self.registry.change(id, change)
        assert held.wake is not None
        return {
            "wake_id": held.wake,
            "generation": held.generation,
            "token": (await self.registry.signer()).token(id, held.generation, held.wake),
            "streams": streams_of(held, tails),
            "lease_ttl_ms": held.config.lease_ttl_ms,
        }

    async def _report(self, id: str, request: Request, report: _Report) -> Answer:
        """An ack or a callback: it moves positions, extends the lease, and ends it if all is done."""
        generation, wake = await self._token(id, request)
        acks = {ack.stream.strip("/"): parse_offset(ack.offset) for ack in report.acks}
        tails = await self.registry.tails((await self._find(id)).links)

        def change(now: Subscription) -> Subscription:
            _fence(now, report, generation, wake, self.streams.clock.now())
            after = acked(now, acks, tails)
            return after.released() if report.done else after.extended(self.streams.clock.now())

        after = await self.registry.change(id, change)
        return json_answer({"ok": True, "next_wake": report.done and pending(after, tails)})

    async def _release(self, id: str, request: Request, report: _Report) -> None:
        generation, wake = await self._token(id, request)

        def change(now: Subscription) -> Subscription:
            _fence(now, report, generation, wake, self.streams.clock.now())
            return now.released()

        await self.registry.change(id, change)

    async def _token(self, id: str, request: Request) -> tuple[int, str]:
        kind, _, token = (request.text_header(b"authorization") or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Refused(401, "the bearer token of the wake is missing", code="TOKEN_INVALID")
        if not (await self.registry.load(id)).sequence:
            # Only a caller with a token learns which subscriptions there are. One that never existed made no token.
            raise Refused(401, "the token is not valid", code="TOKEN_INVALID")
        found = (await self.registry.signer()).check(token.strip(), id)
        await self._find(id)
        return found


def _refusal(refused: Refused) -> Answer:
    error: dict[str, Any] = {"code": refused.code, "message": refused.reason, **refused.fields}
    return json_answer({"error": error}, refused.status)


def _fence(now: Subscription, report: _Report, generation: int, wake: str, at: int) -> None:
    """Refused with 409 unless the token and the report belong to the wake that is under way."""
    same = now.wake == report.wake_id == wake and now.generation == report.generation == generation
    if not same or (now.until and now.until <= at) or (now.config.type == "pull-wake" and now.holder is None):
        raise Refused(409, "the wake has ended: its generation is fenced", code="FENCED")


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return json_decoder(kind).decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is not valid: {error}", code="INVALID_REQUEST") from None
