"""Sessions of agents in a store: for the Claude Agent SDK, for MCP servers, and for the OpenAI Agents SDK.

The classes have the methods that these libraries ask for. They take an open store of `streamkit.aio`, and import
nothing of the libraries before it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from ..aio import AsyncStore
from ..arguments import check_type
from ..errors import EntriesRemoved, InvalidName, SequenceMismatch
from ..model import Entry, Record
from ..names import check_name

__all__ = ["AgentSession", "McpEventStore", "TranscriptStore"]

_decode = json.loads
_MOST_DIGITS = 20
"""Digits of the largest sequence."""


def _encode(item: Any) -> bytes:
    """Encode as the SDKs do, with NaN, infinity and lone surrogates, and the types that msgspec knows."""
    try:
        text = json.dumps(item, ensure_ascii=False, default=_builtins)
    except TypeError:  # also of a key that json does not take, such as a UUID
        text = json.dumps(_builtins(item), ensure_ascii=False)
    # UTF-8 has no lone surrogates. Python spells them as JSON does: \\ud800.
    return text.encode(errors="backslashreplace")


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_raw)


def _raw(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return _decode(bytes(value))
    raise TypeError(f"JSON has no {type(value).__name__}: use text, numbers, lists and dicts")


def _checked(store: AsyncStore) -> AsyncStore:
    check_type(store, AsyncStore, "store is an AsyncStore, of streamkit.aio.connect(…)")
    return store


class TranscriptStore:
    """A `SessionStore` of the Claude Agent SDK.

    A project is the space `claude/` with its key. A transcript is a segment of it: the session's id, and for those of
    subagents a slash and the subpath.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = _checked(store)

    async def append(self, key: Mapping[str, str], entries: Sequence[Mapping[str, Any]]) -> None:
        """Append lines to a transcript, in one commit."""
        if entries:
            await self._store.produce(_space(key), _transcript(key), [Record(_encode(entry)) for entry in entries])

    async def load(self, key: Mapping[str, str]) -> list[dict[str, Any]] | None:
        """Return all lines of a transcript, each `uuid` once; None if there is none."""
        lines: list[dict[str, Any]] = []
        seen: set[str] = set()
        found = False
        async for entry in self._store.consume_segment(_space(key), _transcript(key), gaps="skip"):
            found = True
            line: dict[str, Any] = _decode(entry.payload)
            uuid = line.get("uuid")
            if uuid is None or uuid not in seen:
                lines.append(line)
            if uuid is not None:
                seen.add(uuid)
        return lines if found else None

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """The sessions of a project, with the time of their last entry in milliseconds since the epoch."""
        space = f"claude/{project_key}"
        return [
            {"session_id": unquote(status.segment), "mtime": status.last_timestamp}
            async for status in self._store.segment_statuses(space)
            if "/" not in status.segment and status.first_sequence and status.first_sequence <= status.last_sequence
        ]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """Fold each transcript of a project into the SDK's summary. Reads all transcripts."""
        from claude_agent_sdk import fold_session_summary

        summaries = []
        for session in await self.list_sessions(project_key):
            key: Any = {"project_key": project_key, "session_id": session["session_id"]}
            lines: Any = await self.load(key)
            if lines is not None:
                summaries.append({**fold_session_summary(None, key, lines), "mtime": session["mtime"]})
        return summaries

    async def delete(self, key: Mapping[str, str]) -> None:
        """Delete a transcript; that of a session with those of its subagents."""
        await self._store.delete_segment(_space(key), _transcript(key))
        if key.get("subpath") is None:
            for subpath in await self.list_subkeys(key):
                await self._store.delete_segment(_space(key), f"{_transcript(key)}/{subpath}")

    async def list_subkeys(self, key: Mapping[str, str]) -> list[str]:
        """The subpaths of a session's subagents."""
        prefix = quote(key["session_id"], safe="") + "/"
        return [
            status.segment.removeprefix(prefix)
            async for status in self._store.segment_statuses(_space(key), prefix=prefix)
            if status.first_sequence and status.first_sequence <= status.last_sequence
        ]


class McpEventStore:
    """An `EventStore` of the MCP SDK: streams of a server that a client can resume.

    Ids of streams are unique within one session only. Servers with several sessions give each one a `scope`.
    """

    def __init__(self, store: AsyncStore, *, space: str = "mcp", scope: str = "") -> None:
        self._store = _checked(store)
        self._space = space
        self._scope = f"{scope}/" if scope else ""

    async def store_event(self, stream_id: str, message: Any | None) -> str:
        """Append a message to a stream; returns its id."""
        payload = b""
        if message is not None:
            payload = _encode(message.model_dump(mode="json", by_alias=True, exclude_unset=True))
        status = await self._store.produce(self._space, self._scope + stream_id, [Record(payload)])
        return f"{status.last_sequence}@{stream_id}"

    async def replay_events_after(
        self, last_event_id: str, send_callback: Callable[[Any], Awaitable[None]]
    ) -> str | None:
        """Send the messages after a given one in its stream. Return the id of the stream.

        None, with nothing sent, if it does not exist, or if retention has removed one of these messages.
        """
        from mcp.server.streamable_http import EventMessage
        from mcp.types import jsonrpc_message_adapter

        number, _, stream_id = last_event_id.partition("@")
        if not number.isascii() or not number.isdigit() or len(number) > _MOST_DIGITS:
            return None
        segment = self._scope + stream_id
        try:
            status = await self._store.segment_status(self._space, segment)
        except InvalidName:  # a client may name anything
            return None
        if not 1 <= int(number) <= status.last_sequence:
            return None
        try:
            async for entry in self._store.consume_segment(self._space, segment, min_sequence=int(number) + 1):
                if entry.payload:
                    message = jsonrpc_message_adapter.validate_python(_decode(entry.payload))
                    await send_callback(EventMessage(message, f"{entry.sequence}@{stream_id}"))
        except EntriesRemoved:
            return None
        return stream_id


class AgentSession:
    """A `Session` of the OpenAI Agents SDK: the items of one conversation, in one segment."""

    session_settings = None

    def __init__(self, session_id: str, store: AsyncStore, *, space: str = "agents") -> None:
        self.session_id = check_name(session_id, "segment")
        self._store = _checked(store)
        self._space = space

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The items in order; with `limit` the last so many. A negative limit is none, as in the SDK."""
        items, _ = await self._newest(limit)
        return [_decode(entry.payload) for entry in reversed(items)]

    async def add_items(self, items: Sequence[Any]) -> None:
        """Append items in one commit."""
        if items:
            records = [Record(_encode(item)) for item in items]
            await self._store.produce(self._space, self.session_id, records)

    async def pop_item(self) -> Any | None:
        """Remove the last item and return it; None if there is none. Two callers get two items."""
        end = 0
        while True:
            items, last = await self._newest(1)
            if not items:
                return None
            # The last entry may be erased, and then no reader sees its sequence.
            end = max(end, last)
            # The popped item is named by its sequence: others stay if it is erased.
            pop = Record(b"", {"pop": str(items[0].sequence)})
            try:
                await self._store.produce(self._space, self.session_id, [pop], expected_sequence=end)
            except SequenceMismatch as error:
                end = error.actual
                continue
            return _decode(items[0].payload)

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._store.delete_segment(self._space, self.session_id)

    async def _newest(self, limit: int | None) -> tuple[list[Entry], int]:
        """The entries of the last items, newest first, and the sequence of the last entry that is not erased."""
        items: list[Entry] = []
        popped: set[int] = set()
        last = 0
        if limit == 0:
            return items, last
        entry: Entry
        async for entry in self._store.consume_segment(self._space, self.session_id, reverse=True, gaps="skip"):
            last = last or entry.sequence
            if "pop" in entry.metadata:
                popped.add(int(entry.metadata["pop"]))
            elif entry.sequence not in popped:
                items.append(entry)
                if len(items) == limit:
                    break
        return items, last


def _space(key: Mapping[str, str]) -> str:
    return f"claude/{key['project_key']}"


def _transcript(key: Mapping[str, str]) -> str:
    session, subpath = quote(key["session_id"], safe=""), key.get("subpath")
    return f"{session}/{subpath}" if subpath else session
