"""Subscriptions in the log: each is a segment whose last entry is its state. Each change is one conditional write."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ...decoders import json_decoder
from ...errors import CorruptData, SequenceMismatch, UnsupportedVersion
from ...model import Entry, Record
from ..secret import secret_of
from .decide import decide_append
from .requests import Append
from .state import Refused, message
from .subscriptions import Config, Link, Subscription, is_match
from .webhooks import Signer

if TYPE_CHECKING:
    from .streams import Streams

__all__ = ["LIST", "PREFIX", "Kept", "Registry"]

PREFIX = "__ds/subscriptions/"
LIST = "__ds/subscriptions"
"""The segment whose last entry names all subscriptions."""
_AT_ONCE = 16
_decode = json_decoder(Subscription).decode
_decode_ids = json_decoder(list[str]).decode


class Kept(NamedTuple):
    """A subscription, and the sequence of the entry that holds it."""

    sequence: int
    subscription: Subscription | None


class Registry:
    """The subscriptions of one store, as they are committed now."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._signer: Signer | None = None

    async def ids(self) -> list[str]:
        """The ids of all subscriptions."""
        return _ids_of(await self._streams.store.peek(self._streams.space, LIST))

    async def _list(self) -> tuple[int, list[str]]:
        """The ids of all subscriptions, and the sequence after which the list is written to."""
        sequence, entry = await self._last(LIST)
        return sequence, _ids_of(entry)

    async def _last(self, segment: str) -> tuple[int, Entry]:
        """The sequence after which a segment is written to, and its last entry. Later ones may have been erased."""
        store, space = self._streams.store, self._streams.space
        sequence = (await store.segment_status(space, segment)).last_sequence
        entry = await store.peek(space, segment)
        return max(sequence, entry.sequence), entry

    async def load(self, id: str) -> Kept:
        """The subscription; None in it if there is none."""
        sequence, entry = await self._last(segment_of(id))
        return kept_of(entry)._replace(sequence=sequence)

    async def load_all(self, ids: Iterable[str]) -> dict[str, Kept]:
        """The subscriptions by their ids, some of them at a time."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def load(id: str) -> tuple[str, Kept]:
            async with gate:
                return id, await self.load(id)

        return dict(await asyncio.gather(*[load(id) for id in ids]))

    async def find(self, id: str) -> Kept:
        """The subscription. Refused with 404 if there is none."""
        kept = await self.load(id)
        if kept.subscription is None:
            raise Refused(404, "there is no such subscription", code="SUBSCRIPTION_NOT_FOUND")
        return kept

    async def create(self, id: str, config: Config, now: int, url: str) -> tuple[bool, Subscription]:
        """Create the subscription, or find it; True if it is new. Refused with 409 if it differs.

        `url`: where webhooks find the streams.
        """
        while True:
            kept = await self.load(id)
            if kept.subscription is not None:
                if kept.subscription.config != config:
                    raise Refused(
                        409, "the subscription exists with another configuration", code="SUBSCRIPTION_ALREADY_EXISTS"
                    )
                return False, kept.subscription
            at, ids = await self._list()
            paths = set(config.streams)
            if config.pattern is not None:
                paths |= {path async for path in self.paths() if is_match(config.pattern, path)}
            tails = await self.tails(paths)
            links = {
                path: Link(tails.get(path, 0), path in config.streams, bool(config.pattern and path in tails))
                for path in paths
                if path in tails or path in config.streams
            }
            made = Subscription(id, config, now, url, links)
            try:
                async with self._streams.store.transaction(self._streams.space) as trx:
                    trx.produce(segment_of(id), [_record(made)], expected_sequence=kept.sequence)
                    ids = sorted({*ids, id})
                    trx.produce(LIST, [Record(msgspec.json.encode(ids))], expected_sequence=at)
            except SequenceMismatch:
                continue
            return True, made

    async def paths(self) -> AsyncGenerator[str, None]:
        """The paths of all streams that there are or were."""
        async for path in self._streams.store.get_segments(self._streams.space):
            if not path.startswith("__ds/"):
                yield path

    async def delete(self, id: str) -> None:
        """Delete the subscription. Refused with 404 if there is none."""
        while True:
            kept = await self.find(id)
            assert kept.subscription is not None
            at, ids = await self._list()
            gone = msgspec.structs.replace(kept.subscription.released(), deleted=True, links={})
            try:
                async with self._streams.store.transaction(self._streams.space) as trx:
                    trx.produce(segment_of(id), [_record(gone)], expected_sequence=kept.sequence)
                    ids = [other for other in ids if other != id]
                    trx.produce(LIST, [Record(msgspec.json.encode(ids))], expected_sequence=at)
            except SequenceMismatch:
                continue
            return

    async def change(self, id: str, change: Callable[[Subscription], Subscription]) -> Subscription:
        """Write change(subscription), unless it is the same; `change` may refuse. The state after it."""
        while True:
            kept = await self.find(id)
            assert kept.subscription is not None
            after = change(kept.subscription)
            if after == kept.subscription or await self.replace(kept, after):
                return after

    async def replace(self, kept: Kept, after: Subscription) -> bool:
        """Write `after` if nothing was written since `kept`; True if it was."""
        try:
            await self._streams.store.produce(
                self._streams.space, segment_of(after.id), [_record(after)], expected_sequence=kept.sequence
            )
        except SequenceMismatch:
            return False
        return True

    async def replace_and_tell(self, kept: Kept, after: Subscription, event: bytes) -> bool:
        """Write `after` as `replace` does, and `event` to the wake stream in the same transaction. Refused if that
        stream takes no event."""
        streams, wake_stream = self._streams, after.config.wake_stream
        assert wake_stream is not None
        path = wake_stream.strip("/")
        known = await streams.load(path)
        state = streams.live(path, known)
        request = Append("application/json", event, None, None, False)
        answer = decide_append(state, request, streams.clock.now(), None, known.sequence)
        records = [message(body) for body in answer.messages[:-1]]
        records.append(message(answer.messages[-1], answer.state))
        try:
            async with streams.store.transaction(streams.space) as trx:
                trx.produce(segment_of(after.id), [_record(after)], expected_sequence=kept.sequence)
                trx.produce(path, records, expected_sequence=known.sequence)
        except SequenceMismatch:
            return False
        streams.forget(path)
        return True

    async def tails(self, paths: Iterable[str]) -> dict[str, int]:
        """The tail of each of these streams that exists."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def tail(path: str) -> tuple[str, int | None]:
            async with gate:
                try:
                    return path, (await self._streams.find(path)).tail
                except Refused:
                    return path, None

        found = await asyncio.gather(*[tail(path) for path in paths])
        return {path: at for path, at in found if at is not None}

    async def signer(self) -> Signer:
        """The store's signing key. The first use makes it."""
        if self._signer is None:
            self._signer = Signer(await secret_of(self._streams.store))
        return self._signer


def segment_of(id: str) -> str:
    """The segment of a subscription."""
    return PREFIX + hashlib.blake2b(id.encode(), digest_size=20).hexdigest()


def kept_of(entry: Entry) -> Kept:
    """The subscription that an entry of its segment holds."""
    if entry.sequence == 0:
        return Kept(0, None)
    try:
        subscription = _decode(entry.payload)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"subscription {entry.segment!r} is damaged at sequence {entry.sequence}") from error
    if subscription.version > 1:
        raise UnsupportedVersion("a later release wrote this subscription: upgrade streamkit")
    return Kept(entry.sequence, None if subscription.deleted else subscription)


def _ids_of(entry: Entry) -> list[str]:
    return _decode_ids(entry.payload) if entry.sequence else []


def _record(subscription: Subscription) -> Record:
    return Record(msgspec.json.encode(subscription))


__all__ += ["kept_of", "segment_of"]
