"""The messages of the WebSocket `/v0/ws`: an op, a topic, and the members of the body of the same request over HTTP."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from ...decoders import json_decoder
from ..names import encode_name
from ..problems import problem_of
from ..responses import Answer
from ..sockets.call import Call, Interface
from .errors import Refused, error_answer

__all__ = ["INTERFACE", "PATH", "call_of"]

PATH = b"/v0/ws"
_POSTS = ("append", "diff", "delete", "claim", "ack", "nack", "extend")
_decode = json_decoder(dict[str, msgspec.Raw]).decode


def call_of(op: str, data: bytes) -> Call:
    """The request over HTTP that a message stands for. Refused if the message is not valid."""
    fields = _decode(data)
    del fields["id"], fields["op"]
    if op == "watch":
        return Call(path="/v0/watch", body=msgspec.json.encode(fields), then="stream_url")
    if op not in (*_POSTS, "work"):
        known = ", ".join([*_POSTS, "work", "watch", "unsubscribe", "ping"])
        raise Refused("invalid_request", f"there is no op {op[:40]!r}; there are {known}")
    try:
        topic = json_decoder(str).decode(fields.pop("topic", msgspec.Raw(b"null")))
    except msgspec.DecodeError:
        raise Refused("invalid_request", "topic is the name of a topic") from None
    path = f"/v0/topics/{encode_name(topic)}"
    if op == "work":
        given = {name: msgspec.json.decode(value) for name, value in fields.items()}
        return Call(method="GET", path=f"{path}/work", query=urlencode(given), streams=True)
    body = msgspec.json.encode(fields)
    if op == "append":
        return Call(path=path, body=body, order=frozenset((topic,)))
    waits = bytes(fields.get("wait_ms", msgspec.Raw(b"0"))) != b"0"
    return Call(path=f"{path}/{op}", body=body, waits=waits)


def _refusal(error: Exception) -> Answer:
    return error.answer() if isinstance(error, Refused) else error_answer(problem_of(error))


INTERFACE = Interface(call_of, _refusal)
