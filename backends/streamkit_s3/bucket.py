"""A bucket as named objects: six verbs, with the errors of the seam."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from streamkit.backend import Conflict
from streamkit.errors import PermanentError

from .connection import NO_DATE, Connection, Task
from .counting import Meter
from .errors import Beyond, Missing, Request, lost, refused

__all__ = ["MOST", "Bucket", "Listed", "Object"]

MOST = 1000
"""The largest number of objects in one list, or in one delete of many."""


class Object(NamedTuple):
    data: bytes
    etag: str
    headers: Mapping[str, str]

    @property
    def age(self) -> float:
        """Seconds since it was written, by the service's clock alone; both ends are cut to whole seconds."""
        from email.utils import parsedate_to_datetime

        try:
            now, then = (parsedate_to_datetime(self.headers[name]) for name in ("date", "last-modified"))
        except (KeyError, ValueError):
            raise PermanentError(NO_DATE) from None
        return (now - then).total_seconds()


class Listed(NamedTuple):
    name: str
    size: int
    etag: str


class _Page(NamedTuple):
    objects: list[Listed]
    folders: list[str]
    token: str


class Bucket:
    """A bucket and its requests. It has no state, and one meter counts its requests. A list asks for `page` names at a
    time, at most 1000."""

    def __init__(self, connection: Connection, meter: Meter, page: int = MOST) -> None:
        self.connection = connection
        self._meter = meter
        self._page_size = page

    def _call(self, operation: str, request: Request, **parameters: Any) -> dict[str, Any]:
        return self.connection.call(self._meter, operation, request, **parameters)

    def get(self, name: str) -> Object | None:
        """The object, or None if there is none."""
        request = Request("GET", name)
        try:
            answer = self._call("get_object", request, Key=name)
        except Missing:
            return None
        return Object(answer["Body"], self._etag(answer, request), answer["ResponseMetadata"]["HTTPHeaders"])

    def get_range(self, name: str, start: int, length: int, etag: str | None = None) -> bytes | None:
        """Read at most `length` bytes of an object from `start`. None if it does not exist, or has another etag than
        `etag`."""
        request = Request("GET", name)
        condition = {} if etag is None else {"IfMatch": etag}
        part = f"bytes={start}-{start + max(length, 1) - 1}"
        try:
            answer = self._call("get_object", request, Key=name, Range=part, **condition)
        except (Missing, Conflict):
            return None
        except Beyond:
            return b""
        self._etag(answer, request)
        data: bytes = answer["Body"]
        if "ContentRange" not in answer:
            # The service sent all of it, as it may.
            data = data[start:]
        return data[:length]

    def put(
        self, name: str, data: bytes, *, absent: bool = False, etag: str | None = None, key: bytes | None = None
    ) -> str:
        """Write the object if there is none (`absent`), if it still is `etag`, or in any case. Returns its etag.

        Conflict, with `key`, if the condition does not hold.
        """
        request = Request("PUT", name, write=True, conditional=absent or etag is not None, key=key)
        condition = {"IfNoneMatch": "*"} if absent else {"IfMatch": etag} if etag is not None else {}
        answer = self._call(
            "put_object", request, Key=name, Body=data, ContentType="application/octet-stream", **condition
        )
        return self._etag(answer, request)

    def delete(self, name: str, *, etag: str | None = None, key: bytes | None = None) -> None:
        """Remove the object, which may be missing; with `etag`, Conflict, with `key`, if it has another one."""
        request = Request("DELETE", name, write=True, conditional=etag is not None, key=key)
        condition = {} if etag is None else {"IfMatch": etag}
        with suppress(Missing):
            self._call("delete_object", request, Key=name, **condition)

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove up to 1000 objects, which may be missing. All are tried, then the first error is raised."""
        if len(names) == 1:
            self.delete(names[0])
            return
        request = Request("DELETE", f"{names[0]} and {len(names) - 1} more", write=True)
        answer = self._call(
            "delete_objects", request, Delete={"Objects": [{"Key": name} for name in names], "Quiet": True}
        )
        for problem in answer.get("Errors", ()):
            request = Request("DELETE", str(problem.get("Key")), write=True)
            error = refused(request, self.connection.target, 0, problem, {})
            if not isinstance(error, Missing):
                raise error

    def list(self, prefix: str, *, after: str = "", stop: str = "", limit: int = 0) -> Iterator[Listed]:
        """The objects under `prefix` with after < name < stop ("": no bound), in order.

        Fetched page by page, and from half of a page on the next one ahead, up to about `limit` objects (0: all).
        """
        seen = 0
        page = self._page(prefix, "", after, "", limit or self._page_size)
        while True:
            last = page.objects[-1].name if page.objects else ""
            seen += len(page.objects)
            end = not page.token or (stop and last >= stop)
            # Where a page is empty there is no name to go on from.
            cursor = (prefix, "", last, "" if last else page.token, self._page_size)
            ahead: Task[_Page] | None = None
            try:
                for at, item in enumerate(page.objects):
                    if stop and item.name >= stop:
                        return
                    if at == len(page.objects) // 2 and not end and (not limit or seen < limit):
                        ahead = self.connection.task(self._page, *cursor)
                    yield item
                if end:
                    return
                page = self._page(*cursor) if ahead is None else ahead.result()
            finally:
                if ahead is not None:
                    ahead.cancel()

    def folders(self, prefix: str) -> Iterator[str]:
        """The next path segments under `prefix`, in order."""
        page = self._page(prefix, "/", "", "", self._page_size)
        while True:
            yield from (name[len(prefix) : -1] for name in page.folders)
            if not page.token:
                return
            page = self._page(prefix, "/", "", page.token, self._page_size)

    def versioning(self) -> str:
        """Return "Enabled" or "Suspended"; "" if the bucket never kept versions."""
        answer = self._call("get_bucket_versioning", Request("GET", "?versioning"))
        return str(answer.get("Status", ""))

    def _page(self, prefix: str, delimiter: str, after: str, token: str, size: int) -> _Page:
        parameters: dict[str, Any] = {"Prefix": prefix, "MaxKeys": min(size, self._page_size)}
        if delimiter:
            parameters["Delimiter"] = delimiter
        if token:
            parameters["ContinuationToken"] = token
        elif after:
            parameters["StartAfter"] = after
        request = Request("LIST", prefix)
        answer = self._call("list_objects_v2", request, **parameters)
        if "IsTruncated" not in answer:
            raise PermanentError(f"{self._at(request)}: this does not look like S3; check endpoint_url")
        return _Page(
            [Listed(item["Key"], item["Size"], item["ETag"]) for item in answer.get("Contents", ())],
            [item["Prefix"] for item in answer.get("CommonPrefixes", ())],
            answer.get("NextContinuationToken", "") if answer["IsTruncated"] else "",
        )

    def _etag(self, answer: dict[str, Any], request: Request) -> str:
        etag: str = answer.get("ETag", "")
        if etag.count('"') == 1 or (not etag and request.write):
            raise lost(request, self.connection.target, "cut in the headers")
        if not etag:
            raise PermanentError(f"{self._at(request)}: no ETag, so this does not look like S3; check endpoint_url")
        return etag

    def _at(self, request: Request) -> str:
        return f"{request.at(self.connection.target)} ({self.connection.target})"
