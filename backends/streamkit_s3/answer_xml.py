"""The XML in answers of S3: a root, its children, and theirs. To import ElementTree takes longer than an append."""

from __future__ import annotations

from typing import NamedTuple

from .errors import Cut

__all__ = ["Root", "parse"]


class Root(NamedTuple):
    tag: str
    texts: dict[str, str]
    """The children that have no children of their own."""
    items: list[tuple[str, dict[str, str]]]
    """The others, in order: the tag, and the texts of the children."""


def parse(body: bytes) -> Root:
    """The root of a document, without namespaces. Cut if it is no XML, or not all of it."""
    from pyexpat import ExpatError, ParserCreate

    parser = ParserCreate(None, "}")
    parser.buffer_text = True
    tags: list[str] = []
    texts: dict[str, str] = {}
    fields: dict[str, str] = {}
    items: list[tuple[str, dict[str, str]]] = []
    text = ""
    root = ""

    def start(tag: str, _: object) -> None:
        nonlocal text
        tags.append(tag.rpartition("}")[2])
        text = ""

    def characters(data: str) -> None:
        nonlocal text
        text += data

    def end(_: str) -> None:
        nonlocal text, fields, root
        tag = tags.pop()
        match len(tags):
            case 0:
                root = tag
            case 1 if fields:
                items.append((tag, fields))
                fields = {}
            case 1:
                texts[tag] = text
            case 2:
                fields[tag] = text
        text = ""

    parser.StartElementHandler, parser.CharacterDataHandler, parser.EndElementHandler = start, characters, end
    try:
        parser.Parse(body, True)
    except ExpatError:
        raise Cut("no XML") from None
    return Root(root, texts, items)
