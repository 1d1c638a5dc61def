"""The routes of `/v0`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from ...aio import AsyncStore
from ...base64url import decode_base64url, encode_base64url
from ...errors import StoreClosed, StreamkitError
from ...model import Entry
from ...warn import warn
from .. import sse
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from ..routing import Router as Paths
from ..service import Service
from ..upgrading import upgrade_required
from .bodies import DiffIn, WriteIn, body_of, node_of, nodes_of, object_of, records_of
from .config import TopicConfig, check_router_name, check_topic_name, config_of
from .errors import Refused, performance
from .messages import PATH
from .predicate import predicate_of
from .queues import AckIn, ClaimIn, ExtendIn, NackIn, claim, clamped, counts, job_out, leased, settle
from .reading import Wanted, read_part
from .routers import Router, Routers
from .topics import SPACE, TAG, Topic, Topics
from .watch import TTL, WatchIn, create, cursor_given, opened, stream

__all__ = ["TopicRoutes"]

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Any]]
_MOST_CLAIM = 1_000
_ERASING_PAUSE = 5.0
"""Seconds between two attempts to complete an erasure, beside an archiver."""
_LONGEST_PAUSE = 300.0
"""The most seconds between two attempts after errors."""


class TopicRoutes:
    """The handlers of `/v0`, and the topics of the stores that they have used."""

    def __init__(self) -> None:
        self._open: dict[UUID, tuple[AsyncStore, Topics, Routers]] = {}
        self._begun = time.monotonic()
        self._pushing: set[asyncio.Task[None]] = set()
        self._erasing: dict[UUID, asyncio.Task[None]] = {}

    def register(self, router: Paths) -> None:
        """Add the routes."""

        def add(method: str, pattern: str, handler: Handler, scope: str) -> None:
            router.add(method, f"/v0/{pattern}", _answering(handler), scope, narrow=True)

        add("GET", "topics", self.list_topics, "read")
        add("PUT", "topics/{t}", self.put_topic, "admin")
        add("GET", "topics/{t}", self.get_topic, "read")
        add("DELETE", "topics/{t}", self.delete_topic, "delete")
        add("POST", "topics/{t}", self.append, "write")
        add("POST", "topics/{t}/diff", self.diff, "read")
        add("POST", "topics/{t}/delete", self.delete_records, "delete")
        add("POST", "topics/{t}/claim", self.claim, "write")
        add("POST", "topics/{t}/ack", self.ack, "write")
        add("POST", "topics/{t}/nack", self.nack, "write")
        add("POST", "topics/{t}/extend", self.extend, "write")
        add("GET", "topics/{t}/work", self.work, "write")
        add("GET", "routers", self.list_routers, "read")
        add("PUT", "routers/{r}", self.put_router, "admin")
        add("GET", "routers/{r}", self.get_router, "read")
        add("DELETE", "routers/{r}", self.delete_router, "delete")
        add("POST", "watch", self.watch, "read")
        add("GET", "watch/{wid}", self.open_watch, "read")
        router.add("GET", PATH.decode(), upgrade_required, "read")
        add("GET", "health", self.health, "")
        add("GET", "ready", self.ready, "")
        add("GET", "metrics", self.metrics, "read")

    # -- the store ----------------------------------------------------------------------------------------------

    def _store(self, request: Request) -> AsyncStore:
        """The only store of the key, or the server's own."""
        stores = request.access.stores
        id = next(iter(stores)) if len(stores) == 1 else request.service.own_store
        if id is None:
            raise Problem("not-found", "topics are in the server's own store (--store), or the only store of a key")
        request.access.check_place(id, SPACE, None)
        return request.service.store(str(id))

    def _opened(self, request: Request) -> tuple[AsyncStore, Topics, Routers]:
        store = self._store(request)
        found = self._open.get(store.id)
        if found is None or found[0] is not store:
            topics = Topics(store.sync)
            found = self._open[store.id] = store, topics, Routers(topics)
        return found

    async def _do(self, request: Request, work: Callable[[Topics, Routers], T]) -> T:
        store, topics, routers = self._opened(request)
        try:
            return await store.calls.call(work, topics, routers)
        finally:
            if topics.is_erasing:
                self._complete_later(request.service, store, topics)

    def _complete_later(self, service: Service, store: AsyncStore, topics: Topics) -> None:
        """Complete erasures after the request: of this process, and at its first request those of earlier ones."""
        running = self._erasing.get(store.id)
        if running is not None and not running.done() and running.get_loop() is asyncio.get_running_loop():
            return

        async def complete() -> None:
            pause = _ERASING_PAUSE
            while not service.is_draining:
                try:
                    if await store.calls.call(topics.complete_erasures, long=True):
                        return
                except StoreClosed:
                    return
                except StreamkitError as error:
                    topics.is_erasing = True
                    warn("deleted records of topics are still stored; trying again: %s", error, store=store.id)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                await asyncio.sleep(pause)

        self._erasing[store.id] = asyncio.ensure_future(complete())

    def _topic(self, request: Request) -> str:
        name = check_topic_name(request.name(0))
        request.access.check_segment(name)
        return name

    @staticmethod
    def _check_dead_letter(request: Request, config: TopicConfig) -> None:
        """Raise a Problem unless the key is for the topic of dead letters: settings write to it."""
        if config.dead_letter is not None:
            request.access.check_segment(config.dead_letter)

    def _read(self, topics: Topics, name: str) -> None:
        topics.read_at[name] = int(time.time() * 1000)

    # -- topics -------------------------------------------------------------------------------------------------

    async def put_topic(self, request: Request) -> Any:
        """Make a topic, or replace its configuration."""
        name, given = self._topic(request), await object_of(request)
        config = config_of(name, given)
        self._check_dead_letter(request, config)
        topic, is_new = await self._do(request, lambda topics, _: topics.put(name, config))
        return {"topic": name, "created": is_new, "config": topic.config}, 201 if is_new else 200

    async def get_topic(self, request: Request) -> Any:
        """The state of a topic."""
        name = self._topic(request)
        touch = _flag(request.query(("touch",)), "touch", True)

        def work(topics: Topics, routers: Routers) -> dict[str, Any]:
            topic = topics.get(name)
            routers.bring(name)
            if touch:
                self._read(topics, name)
            return self._state(topics, topic)

        return await self._do(request, work)

    def _state(self, topics: Topics, topic: Topic) -> dict[str, Any]:
        topics.evict(topic)
        extent = topics.extent(topic)
        found: dict[str, Any] = {
            "topic": topic.name,
            "type": topic.config.type,
            "head_seq": extent.head,
            "earliest_seq": extent.earliest,
            "next_seq": extent.head + 1,
            "count": extent.records,
            "bytes": extent.bytes,
            "config": topic.config,
        }
        if topic.is_queue:
            found["queue"] = counts(topics.group(topic))
        return found | {
            "effective_priority": _priority(topics, topic.name, topic.config),
            "last_write_ts": extent.last_write,
            "last_read_ts": topics.read_at.get(topic.name),
        }

    def priority(self, stores: Collection[UUID], own: UUID | None, name: str) -> int:
        """The priority of a topic in the one store of a key, or the server's own; 0 if it was not used here yet."""
        found = self._open.get(next(iter(stores)) if len(stores) == 1 else own)  # type: ignore[arg-type]
        config = None if found is None else found[1].configs.get(name)
        return 0 if found is None or config is None else _priority(found[1], name, config)

    async def list_topics(self, request: Request) -> Any:
        """The topics, by name."""
        query = request.query(("prefix", "page_size", "cursor", "touch"))
        size, after = _page(query)
        prefixes = request.access.segments

        def work(topics: Topics, _: Routers) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            for name in topics.names(query.get("prefix", ""), after):
                topic = topics.find(name) if not prefixes or name.startswith(prefixes) else None
                if topic is not None:
                    state = self._state(topics, topic)
                    kept = ("topic", "head_seq", "earliest_seq", "count", "bytes", "effective_priority")
                    found.append({**{key: state[key] for key in kept}, "durable": topic.config.durable})
                    if len(found) > size:
                        break
            return found

        return _listed("topics", await self._do(request, work), size, "topic")

    async def delete_topic(self, request: Request) -> Any:
        """Remove a topic, its records and its routers."""
        name = self._topic(request)
        if_empty = _flag(request.query(("if_empty",)), "if_empty", False)
        prefixes = request.access.segments or ("",)

        def work(topics: Topics, routers: Routers) -> dict[str, Any]:
            deleted = topics.delete(name, if_empty)
            removed = [one.name for one in routers.delete_of(name) if one.is_for(prefixes)] if deleted else []
            return {"topic": name, "deleted": deleted, "routers_removed": removed}

        return await self._do(request, work)

    # -- records ------------------------------------------------------------------------------------------------

    async def append(self, request: Request) -> Any:
        """Append records, all or none."""
        name = self._topic(request)
        returns = _flag(request.query(("return_seqs",)), "return_seqs", True)
        given = await body_of(request, WriteIn)
        key = given.idempotency_key or request.text_header(b"idempotency-key")
        if key is not None and not 1 <= len(key) <= 256:
            raise Refused("invalid_request", "idempotency_key is 1 to 256 characters")
        records = records_of(given, request.service.limits.records)
        config = config_of(name, given.config or {})
        self._check_dead_letter(request, config)

        def work(topics: Topics, _: Routers) -> tuple[dict[str, Any], bool]:
            topic, is_new = topics.find(name), False
            if topic is None:
                if not (config.auto_create if given.create is None else given.create):
                    topics.get(name)
                topic, is_new = topics.put(name, config)
            written = topics.append(topic, records, key)
            found: dict[str, Any] = {"topic": name, "first_seq": written.first, "last_seq": written.last}
            if returns:
                found["seqs"] = list(range(written.first, written.last + 1))
            head = max(written.last, topics.head(topic))
            return found | {
                "head_seq": head,
                "count": len(records),
                "created": is_new,
                "deduped": written.deduped,
            }, is_new

        found, is_new = await self._do(request, work)
        self._push_later(request, name)
        return found, 201 if is_new else 200

    def _push_later(self, request: Request, name: str) -> None:
        """Have the routers forward it: a source may lose it before a reader reads the target."""
        store, _, routers = self._opened(request)

        async def push() -> None:
            try:
                await store.calls.call(routers.push, name)
            except Exception:
                return

        task = asyncio.ensure_future(push())
        self._pushing.add(task)
        task.add_done_callback(self._pushing.discard)

    async def diff(self, request: Request) -> Any:
        """The records after a sequence."""
        name, given = self._topic(request), await body_of(request, DiffIn)
        if given.from_seq < 0 or given.limit < 0 or given.wait_ms < 0 or given.max_batch_bytes < 0:
            raise Refused("invalid_request", "from_seq, limit, wait_ms and max_batch_bytes are 0 or more")
        wanted = Wanted(
            min(given.limit, 1_000) or 256,
            min(given.max_batch_bytes, 8 << 20) or 1 << 20,
            nodes_of(given.node),
            given.include_tags,
            given.include_meta,
        )

        def work(topics: Topics, routers: Routers) -> dict[str, Any]:
            topic = topics.get(name)
            routers.bring(name)
            self._read(topics, name)
            part = read_part(topics, topic, given.from_seq, wanted)
            return {
                "topic": name,
                "records": part.records,
                "next_from_seq": part.next,
                "head_seq": part.head,
                "earliest_seq": part.earliest,
                "caught_up": part.next >= part.head,
                "tombstone": part.tombstone,
                "lag": max(part.head - part.next, 0),
            }

        if not given.wait_ms:
            return await self._do(request, work)
        return await self._wait(request, name, work, min(given.wait_ms, 30_000) / 1000)

    async def _wait(
        self, request: Request, name: str, work: Callable[[Topics, Routers], dict[str, Any]], seconds: float
    ) -> dict[str, Any]:
        """work(…) once it finds something, or after so many seconds."""
        store, topics, routers = self._opened(request)
        end = asyncio.get_running_loop().time() + seconds
        ring = await request.service.rings.of(store, SPACE, request.access)
        waiter = await request.waiter()
        ring.listen(waiter)
        try:
            while True:
                found = await store.calls.call(work, topics, routers)
                if found["records"] or found["tombstone"] or request.service.is_draining:
                    return found
                if ring.error is not None:
                    raise ring.error
                if not await waiter.wait_until(end):
                    return found
        finally:
            ring.unlisten(waiter)

    async def delete_records(self, request: Request) -> Any:
        """Delete the records that there are now, by sequence, tag, or both."""
        name, given = self._topic(request), await body_of(request, dict[str, Any])
        before, match = given.get("before_seq"), given.get("match")
        if before is None and match is None:
            raise Refused("invalid_request", "a delete needs before_seq, match, or both")
        if before is not None and (type(before) is not int or before < 0):
            raise Refused("invalid_request", "before_seq is a sequence")
        predicate = predicate_of(match)

        def work(topics: Topics, routers: Routers) -> dict[str, Any]:
            topic = topics.get(name)
            routers.bring(name)
            head = topics.head(topic)
            end = head + 1 if before is None else min(before, head + 1)
            chosen = [
                found.sequence
                for found in topics.read(topic, 0)
                if isinstance(found, Entry)
                and found.sequence < end
                and (match is None or predicate(found.metadata.get(TAG)))
            ]
            topics.remove(topic, chosen)
            extent = topics.extent(topic)
            return {
                "topic": name,
                "deleted": len(chosen),
                "earliest_seq": extent.earliest,
                "head_seq": extent.head,
                "count": extent.records,
                "bytes": extent.bytes,
            }

        return await self._do(request, work)

    # -- queues -------------------------------------------------------------------------------------------------

    async def claim(self, request: Request) -> Any:
        """Lease jobs to a worker."""
        request.access.check("read")
        name, given = self._topic(request), await body_of(request, ClaimIn)
        node = node_of(given.node)
        if given.max < 1:
            raise Refused("invalid_request", "max is 1 or more")

        def work(topics: Topics, routers: Routers) -> dict[str, Any]:
            topic = topics.queue(name)
            routers.bring(name)
            found = claim(topics, topic, node, min(given.max, _MOST_CLAIM), clamped(given.lease_ms))
            ready = counts(topics.group(topic))["ready"]
            return {"topic": name, "claimed": [job_out(each) for each in found], "count": len(found), "ready": ready}

        return await self._do(request, work)

    async def _settle(self, request: Request, given: AckIn, action: Any, seconds: float | None = None) -> Any:
        name = self._topic(request)
        node_of(given.node)
        return await self._do(request, lambda topics, _: settle(topics, topics.queue(name), given, action, seconds))

    async def ack(self, request: Request) -> Any:
        """Complete jobs: they are gone."""
        done, skipped, after = await self._settle(request, await body_of(request, AckIn), "ack")
        return _settled(request.name(0), "acked", done, skipped, after)

    async def nack(self, request: Request) -> Any:
        """Give jobs back."""
        given = await body_of(request, NackIn)
        delay = min(max(given.delay_ms, 0), 86_400_000) / 1000
        done, skipped, after = await self._settle(request, given, "nack", delay)
        return _settled(request.name(0), "nacked", done, skipped, after)

    async def extend(self, request: Request) -> Any:
        """Keep jobs for longer."""
        given = await body_of(request, ExtendIn)
        done, skipped, _ = await self._settle(request, given, "extend", clamped(given.lease_ms))
        deadlines = {str(sequence): deadline for sequence, deadline in done.items()}
        return {"topic": request.name(0), "extended": len(done), "skipped": skipped, "deadlines": deadlines}

    async def work(self, request: Request) -> None:
        """Jobs as events, at most `max` of them unsettled. They go back when the connection ends."""
        request.access.check("read")
        name, query = self._topic(request), request.query(("node", "max", "lease_ms"))
        node, most = node_of(query.get("node")), _number(query, "max", 1, 1, _MOST_CLAIM)
        seconds = clamped(_number(query, "lease_ms", 0, 0, 86_400_000) or None)
        topic, group = await self._do(request, lambda topics, _: (topics.queue(name), topics.group(topics.queue(name))))
        if not request.accepts(b"text/event-stream"):
            raise Problem("not-acceptable", "jobs come as text/event-stream; POST …/claim gives them as JSON")
        from ...aio.groups import AsyncGroup

        store = self._store(request)
        jobs = AsyncGroup(group, store.calls).deliveries(most, consumer=node)
        open_ = await request.stream(200, sse.HEADERS)
        following = asyncio.ensure_future(anext(jobs))
        try:
            await open_.write(b"retry: 2000\n\n: hb %d\n\n" % (time.time() * 1000))
            while not (request.service.is_draining or open_.is_over):
                following.add_done_callback(lambda _: open_.wake())
                while not (following.done() or request.service.is_draining or open_.is_over):
                    if open_.is_silent:
                        await open_.write(b": hb %d\n\n" % (time.time() * 1000))
                    await open_.wait()
                if following.done():
                    found = await store.calls.call(leased, group, following.result(), seconds)
                    for each in found:
                        data = msgspec.json.encode({"topic": topic.name, **job_out(each)})
                        await open_.write(sse.event("job", data, str(each.entry.sequence)))
                    following = asyncio.ensure_future(anext(jobs))
        finally:
            following.cancel()
            await asyncio.wait([following])
            await jobs.aclose()

    # -- routers ------------------------------------------------------------------------------------------------

    def _router(self, request: Request) -> str:
        name = request.name(0)
        request.access.check_segment(name)
        return name

    @staticmethod
    def _check_router(request: Request, router: Router | None) -> None:
        """Raise a Problem unless the key is for both topics of a router."""
        for topic in () if router is None else (router.config.source, router.config.dest):
            request.access.check_segment(topic)

    async def put_router(self, request: Request) -> Any:
        """Make a router, or replace its configuration."""
        name, given = self._router(request), await object_of(request)
        for topic in (given.get("source"), given.get("dest")):
            request.access.check_segment(check_topic_name(topic))

        def work(_: Topics, routers: Routers) -> tuple[Router, bool]:
            self._check_router(request, routers.find(check_router_name(name)))
            return routers.put(name, given, request.access.segments or ("",))

        router, is_new = await self._do(request, work)
        return {"router": name, "created": is_new, **msgspec.structs.asdict(router.config)}, 201 if is_new else 200

    async def get_router(self, request: Request) -> Any:
        """The configuration of a router, and how much it has forwarded."""
        name = self._router(request)

        def work(_: Topics, routers: Routers) -> dict[str, Any]:
            router = routers.get(name)
            self._check_router(request, router)
            routers.bring(router.config.dest)
            forwarded = routers.forwarded(router)
            return {"router": name, **msgspec.structs.asdict(router.config), "forwarded_total": forwarded}

        return await self._do(request, work)

    async def list_routers(self, request: Request) -> Any:
        """The routers, by name."""
        query = request.query(("prefix", "source", "dest", "page_size", "cursor"))
        size, after = _page(query)
        prefixes = request.access.segments or ("",)

        def is_wanted(router: Router) -> bool:
            config = router.config
            return (
                router.name.startswith(query.get("prefix", ""))
                and (after is None or router.name > after)
                and query.get("source", config.source) == config.source
                and query.get("dest", config.dest) == config.dest
                and router.is_for(prefixes)
            )

        def work(_: Topics, routers: Routers) -> list[dict[str, Any]]:
            found = [router for router in routers.all() if is_wanted(router)][: size + 1]
            return [
                {
                    "router": router.name,
                    "source": router.config.source,
                    "dest": router.config.dest,
                    "forwarded_total": routers.forwarded(router),
                }
                for router in found
            ]

        return _listed("routers", await self._do(request, work), size, "router")

    async def delete_router(self, request: Request) -> Any:
        """Remove a router. Its copies stay."""
        name = self._router(request)

        def work(_: Topics, routers: Routers) -> bool:
            self._check_router(request, routers.find(check_router_name(name)))
            return routers.delete(name)

        deleted = await self._do(request, work)
        return {"router": name, "deleted": deleted}

    # -- watching -----------------------------------------------------------------------------------------------

    async def watch(self, request: Request) -> Any:
        """Say which topics to watch; the answer has the path of the stream."""
        lenient = _flag(request.query(("lenient",)), "lenient", False)
        given = await body_of(request, WatchIn)
        for name in given.topics:
            request.access.check_segment(check_topic_name(name))
        key = request.access.id

        def work(topics: Topics, routers: Routers) -> tuple[str, dict[str, Any]]:
            for name in given.topics:
                routers.bring(name)
            return create(topics, given, key, lenient)

        wid, told = await self._do(request, work)
        return {"wid": wid, "stream_url": f"/v0/watch/{wid}", "session_ttl_ms": TTL, "topics": told}

    async def open_watch(self, request: Request) -> None:
        """The events of a watch."""
        request.query(("cursor",))
        store, topics, routers = self._opened(request)
        wid, key = request.name(0), request.access.id
        watch = await store.calls.call(opened, store.sync, wid, key, cursor_given(request))
        for name in watch.topics:
            request.access.check_segment(name)  # a key may have lost some since, and tokens of one id differ
        await stream(request, topics, routers, watch)

    # -- the server ---------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Any:
        """The process answers."""
        from ... import __version__

        uptime = int((time.monotonic() - self._begun) * 1000)
        return {"status": "ok", "version": __version__, "uptime_ms": uptime}

    async def ready(self, request: Request) -> Any:
        """200 while the process takes requests."""
        if request.service.is_draining:
            raise Problem("draining", "the process is about to end")
        return {"status": "ready", "wal_replay_complete": True}

    async def metrics(self, request: Request) -> Any:
        """Counts, as Prometheus reads them, or as JSON."""
        prefixes = request.access.segments or ("",)

        def work(topics: Topics, routers: Routers) -> tuple[list[dict[str, Any]], int]:
            names = [name for name in topics.names("", None) if name.startswith(prefixes)]
            found = [topics.find(name) for name in names[:1_000]]
            states = [self._state(topics, topic) for topic in found if topic is not None]
            return states, sum(router.is_for(prefixes) for router in routers.all())

        states, routers = await self._do(request, work)
        total = {"topics_topics": len(states), "topics_routers": routers, "topics_ready": 1}
        if request.accepts(b"application/json"):
            return {**total, "topics": states}
        lines = [f"{name} {value}" for name, value in total.items()]
        for state in states:
            for name, key in (("head_seq", "head_seq"), ("earliest_seq", "earliest_seq"), ("records_live", "count")):
                lines.append(f'topics_topic_{name}{{topic="{state["topic"]}"}} {state[key]}')
        text = "\n".join([*lines, ""])
        return Answer(200, text.encode(), ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),))


def _priority(topics: Topics, name: str, config: TopicConfig) -> int:
    """The priority that a topic has by its configuration, or by the time since its last read."""
    if config.priority is not None:
        return config.priority
    read_at = topics.read_at.get(name)
    if not config.auto_priority or read_at is None:
        return 0
    return max(0, 1_000 - int(time.time() - read_at / 1000))


def _answering(handler: Handler) -> Callable[[Request], Awaitable[Answer | None]]:
    async def answer(request: Request) -> Answer | None:
        begun = time.perf_counter()
        try:
            found = await handler(request)
        except Refused as refused:
            return refused.answer()
        if found is None or isinstance(found, Answer):
            return found
        body, status = found if isinstance(found, tuple) else (found, 200)
        return json_answer({**body, "performance": performance(begun)}, status)

    answer.__name__ = handler.__name__
    answer.__doc__ = handler.__doc__
    return answer


def _settled(name: str, what: str, done: dict[int, int], skipped: list[int], after: dict[str, int]) -> dict[str, Any]:
    return {
        "topic": name,
        what: len(done),
        "skipped": skipped,
        "ready": after["ready"],
        "in_flight": after["in_flight"],
    }


def _flag(query: dict[str, str], name: str, default: bool) -> bool:
    text = query.get(name)
    if text is None:
        return default
    if text not in ("true", "false", "1", "0"):
        raise Refused("invalid_request", f"{name} is true or false, not {text[:40]!r}")
    return text in ("true", "1")


def _number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text[:12]) < least:
        raise Refused("invalid_request", f"{name} is a number from {least}, not {text[:40]!r}")
    return min(int(text[:12]), most)


def _page(query: dict[str, str]) -> tuple[int, str | None]:
    """The size of a page, and the name that it comes after."""
    size = _number(query, "page_size", 100, 1, 1_000)
    cursor = query.get("cursor")
    if cursor is None:
        return size, None
    try:
        return size, decode_base64url(cursor).decode()
    except ValueError:
        raise Refused("invalid_request", "the cursor is not one that a list gave") from None


def _listed(name: str, found: list[dict[str, Any]], size: int, key: str) -> dict[str, Any]:
    page: dict[str, Any] = {name: found[:size]}
    if len(found) > size:
        page["next_cursor"] = encode_base64url(found[size - 1][key].encode())
    return page
