"""The types of a program against those of its last release."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pydantic
import pytest

from streamkit.cli.app import run
from streamkit.types import Registry, Type
from streamkit.types.schemas import breaking_changes, schemas_of


class Line(msgspec.Struct):
    item: str
    count: int = 1


class Base(msgspec.Struct):
    id: str
    lines: list[Line]
    state: Literal["new", "paid"] = "new"
    note: str | None = None
    prices: dict[str, int] = {}


@attrs.define
class Packed:
    boxes: list[str]


class Shipped(pydantic.BaseModel):
    to: str
    weight: float = 0.0


class Tree(msgspec.Struct):
    children: list[Tree] = []


def struct(name: str, *fields: Any, **options: Any) -> Any:
    return msgspec.defstruct(name, fields, **options)


def changed(**fields: Any) -> Any:
    """`Base` with other fields; None leaves one out."""
    made: dict[str, Any] = {
        "id": (str,),
        "lines": (list[Line],),
        "state": (Literal["new", "paid"], "new"),
        "note": (str | None, None),
        "prices": (dict[str, int], msgspec.field(default_factory=dict)),
        **fields,
    }
    return struct("Base", *((name, *field) for name, field in made.items() if field), kw_only=True)


OLD = json.loads(json.dumps(schemas_of(Registry([Base, Packed, Shipped]))))


def changes(*types: Any) -> list[str]:
    names = {made.kind.__name__ if isinstance(made, Type) else made.__name__ for made in types}
    kept = [made for made in (Base, Packed, Shipped) if made.__name__ not in names]
    return breaking_changes(OLD, Registry([*kept, *types]))


def test_the_same_types_and_new_ones_break_nothing() -> None:
    assert changes() == []
    assert changes(Line) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"more": (int, 0)},
        {"note": None},
        {"id": (str | int,)},
        {"id": (Any,)},
        {"state": (Literal["new", "paid", "sent"], "new")},
        {"state": (str, "new")},
        {"prices": (dict[str, float], {})},
        {"lines": (list[struct("Line", ("item", str), ("count", float, 1.0), ("more", int, 0))],)},  # type: ignore[misc]
    ],
)
def test_a_change_that_reads_earlier_payloads_is_fine(fields: dict[str, Any]) -> None:
    assert changes(changed(**fields)) == []
    old = Base("1", [Line("tea")], prices={"tea": 3})
    assert msgspec.json.decode(msgspec.json.encode(old), type=changed(**fields))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"more": (int,)}, "Base.more is required, and earlier payloads may lack it"),
        ({"id": (int,)}, "Base.id was string and is integer"),
        ({"note": (str, "")}, "Base.note is no longer null"),
        ({"state": (Literal["new"], "new")}, "Base.state takes fewer values"),
        ({"prices": (dict[str, str], {})}, r"Base.prices.\* was integer and is string"),
        ({"lines": (list[struct("Line", ("item", str), ("count", int))],)}, r"Base.lines\[\].count is required"),  # type: ignore[misc]
        ({"id": (Annotated[str, msgspec.Meta(max_length=3)],)}, "Base.id has another maxLength"),
    ],
)
def test_a_change_that_cannot_read_them_needs_another_version(fields: dict[str, Any], text: str) -> None:
    kind = changed(**fields)
    [found] = changes(kind)
    assert re.search(text, found), found
    assert found.endswith("raise the version of 'Base' from 1, and upcast the earlier one")
    assert changes(Type(kind, version=2, upcast={1: lambda fields: fields})) == []


def test_a_field_that_is_refused_a_type_that_is_gone_and_a_version_that_falls() -> None:
    strict = struct("Base", ("id", str), forbid_unknown_fields=True)
    refused = [each.partition(" ")[0] for each in changes(strict)]
    assert refused == ["Base.lines", "Base.state", "Base.note", "Base.prices"]
    assert breaking_changes(OLD, Registry([Base, Packed])) == [
        "the type 'Shipped' was removed: keep it while the log has entries of it"
    ]
    later = schemas_of(Registry([Type(Base, version=2, upcast={1: lambda fields: fields})]))
    assert breaking_changes(later, Registry([Base])) == [
        "the type 'Base' has version 1, after version 2: versions only grow"
    ]
    for wrong in ({}, {"types": [1]}, {"types": {"Base": 1}}):
        with pytest.raises(ValueError, match="types export"):
            breaking_changes(wrong, Registry([Base]))


def test_types_that_contain_themselves_are_compared() -> None:
    document = schemas_of(Registry([Tree]))
    assert breaking_changes(document, Registry([Tree])) == []


def test_the_command_line_exports_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "typed_shop.py").write_text(
        "import msgspec\nfrom streamkit.types import Registry\n"
        "class Placed(msgspec.Struct):\n    item: str\n"
        "events, other = Registry([Placed]), 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def called(*arguments: str) -> tuple[int, str, str]:
        code = run(["types", *arguments])
        return code, *capfd.readouterr()

    code, out, _ = called("export", "typed_shop:events")
    assert code == 0
    assert json.loads(out)["types"]["Placed"]["version"] == 1
    types = tmp_path / "types.json"
    types.write_text(out)
    assert called("check", "typed_shop:events", "types.json") == (
        0,
        "1 types read all that the last release has written\n",
        "",
    )
    types.write_text(out.replace('"string"', '"integer"'))
    assert called("check", "typed_shop:events", "types.json") == (
        1,
        "",
        "Placed.item was integer and is string: raise the version of 'Placed' from 1, and upcast the earlier one\n",
    )
    types.write_text("?")
    for arguments in (
        ("check", "typed_shop:events", "types.json"),
        ("check", "typed_shop:events", "nothing.json"),
        ("check", "typed_shop:other", "types.json"),
        ("export", "typed_shop:nothing"),
    ):
        code, out, error = called(*arguments)
        assert (code, out) == (2, "")
        assert error
