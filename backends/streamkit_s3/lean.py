"""The requests of S3 that a store makes, without an SDK: the methods, parameters and answers are those of boto3."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_plus
from zlib import crc32

from .answer_xml import Root, parse
from .errors import Cut, Refused
from .service import Service
from .signature import Signer
from .wire import Answer, Wire

if TYPE_CHECKING:
    from .counting import Counts

__all__ = ["Lean"]

_HEADERS: Final = {
    "Range": "range",
    "IfMatch": "if-match",
    "IfNoneMatch": "if-none-match",
    "ContentType": "content-type",
}
_QUERY: Final = {
    "ContinuationToken": "continuation-token",
    "Delimiter": "delimiter",
    "MaxKeys": "max-keys",
    "Prefix": "prefix",
    "StartAfter": "start-after",
}
_SAFE = "-._~"
_NO_KEY = b"<Code>NoSuchKey</Code>"
"""The error code for a missing object. Only an element can contain it, because a text in XML has no bare `<`."""


class Lean:
    """Stands in for boto3's client. Makes each request once. Safe to share between threads."""

    def __init__(self, service: Service, counts: Counts, *, connect: float, read: float) -> None:
        self._service = service
        self._counts = counts
        self._signer = Signer(service.region)
        self._wire = Wire(service.server, service.port, service.ca, connect=connect, read=read)

    def get_object(self, **parameters: Any) -> dict[str, Any]:
        answer = self._send("GET", "GET", self._path(parameters), "", _headers(parameters), b"")
        found = {"Body": answer.body, "ETag": answer.headers.get("etag", "")}
        if "content-range" in answer.headers:
            found["ContentRange"] = answer.headers["content-range"]
        return _told(answer, found)

    def put_object(self, **parameters: Any) -> dict[str, Any]:
        answer = self._send("PUT", "PUT", self._path(parameters), "", _headers(parameters), parameters["Body"])
        return _told(answer, {"ETag": answer.headers.get("etag", "")})

    def delete_object(self, **parameters: Any) -> dict[str, Any]:
        return _told(self._send("DELETE", "DELETE", self._path(parameters), "", _headers(parameters), b""), {})

    def delete_objects(self, **parameters: Any) -> dict[str, Any]:
        from xml.sax.saxutils import escape

        names = (f"<Object><Key>{escape(item['Key'])}</Key></Object>" for item in parameters["Delete"]["Objects"])
        body = (
            f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(names)}<Quiet>true</Quiet></Delete>'
        ).encode()
        checksum = base64.b64encode(crc32(body).to_bytes(4, "big")).decode()
        headers = {"x-amz-checksum-crc32": checksum, "x-amz-sdk-checksum-algorithm": "CRC32"}
        root = _parsed(answer := self._send("DELETE", "POST", self._root(), "delete=", headers, body))
        return _told(answer, {"Errors": [item for tag, item in root.items if tag == "Error"]})

    def list_objects_v2(self, **parameters: Any) -> dict[str, Any]:
        asked = {name: str(parameters[known]) for known, name in _QUERY.items() if known in parameters}
        asked |= {"encoding-type": "url", "list-type": "2"}
        query = "&".join(f"{name}={quote(asked[name], safe=_SAFE)}" for name in sorted(asked))
        root = _parsed(answer := self._send("LIST", "GET", self._root(), query, {}, b""))
        texts = root.texts
        # A service that does not know the encoding ignores it, and does not name it in its answer.
        decoded = unquote_plus if texts.get("EncodingType") == "url" else str
        found: dict[str, Any] = {
            "Contents": [
                {"Key": decoded(item["Key"]), "Size": int(item["Size"]), "ETag": item["ETag"]}
                for tag, item in root.items
                if tag == "Contents"
            ],
            "CommonPrefixes": [
                {"Prefix": decoded(item["Prefix"])} for tag, item in root.items if tag == "CommonPrefixes"
            ],
        }
        if "IsTruncated" in texts:
            found["IsTruncated"] = texts["IsTruncated"] == "true"
        if "NextContinuationToken" in texts:
            found["NextContinuationToken"] = texts["NextContinuationToken"]
        return _told(answer, found)

    def get_bucket_versioning(self, **_: Any) -> dict[str, Any]:
        root = _parsed(answer := self._send("GET", "GET", self._root(), "versioning=", {}, b""))
        return _told(answer, dict(root.texts))

    def close(self) -> None:
        """End the idle connections. Requests may follow."""
        self._wire.close()

    def _root(self) -> str:
        return self._service.root or "/"

    def _path(self, parameters: Mapping[str, Any]) -> str:
        return f"{self._service.root}/{quote(parameters['Key'], safe='/-._~')}"

    def _send(self, kind: str, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> Answer:
        service = self._service
        headers["host"] = service.host
        signed = self._signer.sign(service.credentials(), method, path, query, headers, body)
        signed["user-agent"] = "streamkit"
        if method != "GET":
            signed["content-length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        target = f"{path}?{query}" if query else path
        self._counts.sent(kind, len(body))
        answer = self._wire.exchange(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"), body)
        self._counts.received(answer.headers.get("date"), len(answer.body))
        if answer.status >= 300:
            raise Refused(answer.status, _error(answer.body), answer.headers)
        return answer


def _headers(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {name: parameters[known] for known, name in _HEADERS.items() if known in parameters}


def _told(answer: Answer, found: dict[str, Any]) -> dict[str, Any]:
    found["ResponseMetadata"] = {"HTTPStatusCode": answer.status, "HTTPHeaders": answer.headers}
    return found


def _error(body: bytes) -> dict[str, str]:
    """Return the fields of a refusal's body; none if the body is no XML, as that of a gateway."""
    if _NO_KEY in body:
        return {"Code": "NoSuchKey"}  # all that an object's absence says: no parser is loaded for it
    try:
        return parse(body).texts
    except Cut:
        return {}


def _parsed(answer: Answer) -> Root:
    """The body as XML. S3 may begin to answer, with the status 200, before it knows that it fails."""
    root = parse(answer.body)
    if root.tag == "Error":
        raise Refused(500, root.texts, answer.headers)
    return root
