"""Decisions about a stream: pure functions of its state and a request. They do no I/O."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from .requests import Append, Create, Producer, split_json
from .state import MOST_PRODUCERS, Refused, State, media_type, offset_text

__all__ = ["Answer", "decide_append", "is_live", "matches"]


class Answer(NamedTuple):
    """The decision about an append: the answer if `records` are written, with `state` after the last of them."""

    status: int
    headers: dict[str, str]
    messages: list[bytes]
    state: State
    changed: bool


def is_live(state: State | None, now: int, used: int = 0) -> bool:
    """True if clients can reach the stream. Refused with 410 if it is deleted and kept for its forks."""
    if state is None or state.gone == 2:
        return False
    expiry = state.expiry(used)
    expired = expiry is not None and now >= expiry
    if state.gone == 1 or (expired and state.forks):
        raise Refused(410, "the stream was deleted; its data is kept for its forks")
    return not expired


def matches(state: State, request: Create) -> bool:
    """True if the stream is configured as a repeated creation asks for."""
    fork, asked = state.fork, request.fork
    if asked is None or fork is None:
        same = asked is None and fork is None
    else:
        same = asked.source == fork.source and asked.sub == fork.sub and asked.offset in (None, fork.asked)
        same = same and (asked.offset is None) == (fork.asked is None)
    inherits = fork is not None and request.ttl is None and request.expires is None
    return (
        same
        and _same_type(request.content_type, state)
        and (inherits or (request.ttl, request.expires) == (state.ttl, state.expires))
        and request.closed == state.closed
    )


def _same_type(content_type: str | None, state: State) -> bool:
    """True if the types are equal without regard to parameters and case. A fork may leave its type out."""
    if content_type is None:
        return state.fork is not None or media_type(state.content_type) == "application/octet-stream"
    return media_type(content_type) == media_type(state.content_type)


def decide_append(state: State, request: Append, now: int, earlier: tuple[int, int] | None, sequence: int) -> Answer:
    """The answer to a POST. Refused if the protocol refuses it.

    `earlier`: the producer's epoch and sequence, if its state was moved out of the stream's; `sequence`: the segment's
    last.
    """
    producer = request.producer
    known = None if producer is None else state.producers.get(producer.id, earlier)
    if producer is not None and known is not None and producer.epoch < known[0]:
        raise Refused(
            403,
            f"the producer's epoch is stale: {known[0]} is current",
            {"Producer-Epoch": str(known[0])},
            "stale_epoch",
        )
    if state.closed:
        return _closed(state, request, known)
    if request.body and media_type(request.content_type or "") != media_type(state.content_type):
        raise Refused(409, f"the stream's content type is {state.content_type}", code="content_type")
    messages = _messages(state, request)
    if producer is not None:
        duplicate = _check_producer(producer, known)
        if duplicate:
            assert known is not None
            return Answer(204, _echo(state, known), [], state, False)
    if request.seq is not None and state.seq is not None and request.seq.encode() <= state.seq.encode():
        raise Refused(409, f"Stream-Seq must be greater than {state.seq!r}", code="seq")
    producers = state.producers
    if producer is not None:
        producers = {id: value for id, value in producers.items() if id != producer.id}
        producers[producer.id] = (producer.epoch, producer.seq)
    after = replace(
        state,
        tail=sequence + len(messages) + state.shift if messages else state.tail,
        seq=state.seq if request.seq is None else request.seq,
        producers=producers,
        closed=request.close,
        closed_by=tuple(producer) if request.close and producer is not None else None,
        touched=now if state.ttl is not None else 0,
    )
    headers = _headers(after)
    if producer is not None:
        headers |= {"Producer-Epoch": str(producer.epoch), "Producer-Seq": str(producer.seq)}
    return Answer(200 if producer is not None and messages else 204, headers, messages, after, True)


def _messages(state: State, request: Append) -> list[bytes]:
    if not request.body:
        return []
    if not state.is_json:
        return [request.body]
    messages = split_json(request.body, request.most)
    if not messages:
        raise Refused(400, "the JSON array is empty: it has no messages to append")
    return messages


def _check_producer(producer: Producer, known: tuple[int, int] | None) -> bool:
    """True if the request is a duplicate. Refused if it is out of order. Stale epochs were refused before."""
    epoch, last = known or (producer.epoch, -1)
    if producer.epoch > epoch:
        if producer.seq != 0:
            raise Refused(400, "a new epoch of a producer begins with Producer-Seq 0", code="epoch_seq")
        return False
    if producer.seq <= last:
        return True
    if producer.seq > last + 1:
        raise Refused(
            409,
            f"the producer's sequence has a gap: expected {last + 1}, received {producer.seq}",
            {"Producer-Expected-Seq": str(last + 1), "Producer-Received-Seq": str(producer.seq)},
            "sequence_gap",
        )
    return False


def _closed(state: State, request: Append, known: tuple[int, int] | None) -> Answer:
    if request.producer is not None:
        if known is not None and request.producer == state.closed_by:
            return Answer(204, _echo(state, known), [], state, False)
        if not request.body and state.closed_by is None:
            return Answer(204, _headers(state), [], state, False)
    elif not request.body:
        return Answer(204, _headers(state), [], state, False)
    raise Refused(409, "the stream is closed: nothing can be appended", _headers(state), "closed")


def _headers(state: State) -> dict[str, str]:
    headers = {"Stream-Next-Offset": offset_text(state.tail)}
    if state.closed:
        headers["Stream-Closed"] = "true"
    return headers


def _echo(state: State, known: tuple[int, int]) -> dict[str, str]:
    return _headers(state) | {"Producer-Epoch": str(known[0]), "Producer-Seq": str(known[1])}


def trimmed(state: State) -> tuple[State, dict[str, tuple[int, int]]]:
    """The state with its latest producers, and the producers that have to move to segments of their own."""
    surplus = len(state.producers) - MOST_PRODUCERS
    if surplus <= 0:
        return state, {}
    items = list(state.producers.items())
    # Half of them move at once, so that a move is rare.
    moving = dict(items[: surplus + MOST_PRODUCERS // 2])
    return replace(state, producers=dict(items[len(moving) :]), moved=True), moving
