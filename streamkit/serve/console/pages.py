"""The files of the console. The address of each contains a hash of all of them, so browsers keep them for ever."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from ..problems import Problem
from ..request import Request
from ..responses import Answer
from ..routing import Router
from ..tags import has_tag_weakly

__all__ = ["register"]

_TYPES = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
    "woff2": b"font/woff2",
    "txt": b"text/plain; charset=utf-8",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    b"trusted-types 'none'"
)
"""Headers of a page: only files of this server run or style it, no text becomes markup, and no other site shows it in a
frame."""
_SAFE = (
    (b"content-security-policy", _POLICY),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_FOR_EVER = (b"cache-control", b"public, max-age=31536000, immutable")
_ASK = (b"cache-control", b"no-cache")
_PLACE = b"assets/0/"
"""The folder of the files in index.html, before their hash is known."""


def _read(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            found |= _read(each, f"{prefix}{each.name}/")
        elif each.name.rpartition(".")[2] in _TYPES:
            found[prefix + each.name] = each.read_bytes()
    return found


@cache
def _files() -> tuple[dict[str, bytes], str]:
    """All files by their names, and their hash. They are read once, when the first page is asked for."""
    found = _read(files(__package__) / "static")
    digest = hashlib.blake2b(digest_size=12)
    for name, data in found.items():
        digest.update(b"%b %d\n%b" % (name.encode(), len(data), data))
    hash = digest.hexdigest()
    found["index.html"] = found["index.html"].replace(_PLACE, b"assets/%b/" % hash.encode())
    return found, hash


async def redirect(request: Request) -> Answer:
    """The page's own address ends with a slash, and so its files are found beside it."""
    return Answer(308, b"", ((b"location", b"console/"), *_SAFE))


async def index(request: Request) -> Answer:
    """The page."""
    found, hash = _files()
    tag = b'"%b"' % hash.encode()
    headers = ((b"etag", tag), _ASK, *_SAFE)
    held = request.joined(b"if-none-match")
    if held is not None and has_tag_weakly(held, tag):
        return Answer(304, b"", headers)
    return Answer(200, found["index.html"], ((b"content-type", _TYPES["html"]), *headers))


async def asset(request: Request) -> Answer:
    """One file of the page, by its name under the hash of all files."""
    found, hash = _files()
    name = request.parts[1].decode("latin-1")
    data = found.get(name)
    if data is None or request.parts[0] != hash.encode() or name == "index.html":
        raise Problem("not-found", "the console has no such file; reload /console/")
    kind = _TYPES[name.rpartition(".")[2]]
    return Answer(200, data, ((b"content-type", kind), _FOR_EVER, *_SAFE))


def register(router: Router) -> None:
    """Add the routes of the files. They need no key, because they hold no data."""
    router.add("GET HEAD", "/console", redirect, "")
    router.add("GET HEAD", "/console/", index, "")
    router.add("GET HEAD", "/console/assets/{hash}/{file*}", asset, "")
