"""Stores, spaces and segments over HTTP: lists, settings, sizes, removal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from fix_serve import Served

import streamkit
from streamkit import Record

SPACE = "spaces/s"


def test_a_space_is_created_with_settings_and_found_again(served: Served) -> None:
    assert served.ask("GET", SPACE).status == 404
    settings = {"partitions": 4, "idempotency_window": 100.0, "retention": {"max_entries": 5}}
    made = served.ask("PUT", SPACE, settings)
    assert (made.status, made.json["partitions"], made.json["retention"]["max_entries"]) == (201, 4, 5)
    assert served.ask("PUT", SPACE, settings).status == 200
    other = served.ask("PUT", SPACE, {"partitions": 2})
    assert (other.status, other.json["type"]) == (409, "urn:streamkit:space-exists")
    assert served.ask("GET", SPACE).json == made.json
    assert served.ask("PUT", "spaces/plain").status == 201


def test_a_retention_is_changed_if_it_is_the_one_that_was_read(served: Served) -> None:
    served.ask("PUT", SPACE)
    tag = served.ask("GET", SPACE).headers["etag"]
    changed = served.ask("PATCH", SPACE, {"max_age": 60.0}, {"If-Match": tag})
    assert (changed.status, changed.json["retention"]["max_age"]) == (200, 60.0)
    lost = served.ask("PATCH", SPACE, {"max_age": 70.0}, {"If-Match": tag})
    assert (lost.status, lost.headers["etag"]) == (412, changed.headers["etag"])
    assert served.ask("PATCH", "spaces/none", {}).status == 404


def test_of_changes_at_once_that_name_the_same_settings_one_wins(served: Served) -> None:
    served.ask("PUT", SPACE, {"partitions": 2})
    for turn in range(5):
        tag = served.ask("GET", SPACE).headers["etag"]

        def change(age: int, tag: str = tag) -> int:
            return served.ask("PATCH", SPACE, {"max_age": float(age)}, {"If-Match": tag}).status

        ages = range(60 + 8 * turn, 68 + 8 * turn)  # settings that the space never had
        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(change, ages)) == [200] + [412] * 7


def test_if_match_is_a_list_and_knows_no_weak_tags(served: Served) -> None:
    served.ask("PUT", SPACE)
    tag = served.ask("GET", SPACE).headers["etag"]
    for header, status in ((f'"other", {tag}', 200), ("*", 200), (f"W/{tag}", 412), ("x", 412), ('"other"', 412)):
        tag = served.ask("GET", SPACE).headers["etag"]
        found = served.ask("PATCH", SPACE, {"max_entries": 7}, {"If-Match": header})
        assert found.status == status, header
        served.ask("PATCH", SPACE, {})


def test_a_wrong_field_is_refused_with_the_fields_that_there_are(served: Served) -> None:
    refused = served.ask("PATCH", SPACE, {"retention": {"max_age": 60.0}})
    assert refused.status == 400
    assert "unknown field `retention`" in refused.json["detail"]
    assert "max_age, max_entries, max_bytes, per, when_full" in refused.json["detail"]
    refused = served.ask("GET", "entries?spaces=a,b")
    assert refused.status == 400
    assert "this resource takes cursor, from, gaps, limit, max_bytes, reverse, space, until" in refused.json["detail"]


def test_a_space_that_exists_with_another_retention_is_refused(served: Served) -> None:
    kept = {"retention": {"max_entries": 5}}
    assert served.ask("PUT", SPACE, kept).status == 201
    assert served.ask("PUT", SPACE, kept).status == 200
    assert served.ask("PUT", SPACE).status == 200
    other = served.ask("PUT", SPACE, {"retention": {"max_entries": 6}})
    assert (other.status, other.json["type"]) == (409, "urn:streamkit:space-exists")
    assert served.ask("GET", SPACE).json["retention"]["max_entries"] == 5
    served.store.produce("full", "a", [Record(b"1")])
    assert served.ask("PUT", "spaces/full", kept).status == 409


def test_a_space_is_not_created_with_a_bad_retention(served: Served) -> None:
    for wrong in ({"max_entries": 0}, {"max_age": -1}, {"per": "store"}, {"when_full": "x"}):
        assert served.ask("PUT", SPACE, {"retention": wrong}).status == 400
    assert served.ask("GET", SPACE).status == 404


def test_a_creation_that_was_cut_before_its_retention_is_completed_by_the_next_one(served: Served) -> None:
    served.store.create_space("s")
    made = served.ask("PUT", SPACE, {"retention": {"max_entries": 5}})
    assert (made.status, made.json["retention"]["max_entries"]) == (200, 5)


def test_lists_come_in_pages(served: Served) -> None:
    for name in ("a/1", "a/2", "a/3", "b"):
        served.store.produce(name, "x", [Record(b"1")])
        served.store.produce("s", name, [Record(b"1")])
    first = served.ask("GET", "spaces?prefix=a/&limit=2").json
    assert [space["name"] for space in first["spaces"]] == ["a/1", "a/2"]
    second = served.ask("GET", f"spaces?prefix=a/&limit=2&after={first['next']}").json
    assert ([space["name"] for space in second["spaces"]], second["next"]) == (["a/3"], None)
    assert served.ask("GET", first["spaces"][0]["href"]).status == 200
    first = served.ask("GET", "spaces/s/segments?prefix=a/&limit=2").json
    assert [(one["segment"], one["last_sequence"]) for one in first["segments"]] == [("a/1", 1), ("a/2", 1)]
    second = served.ask("GET", f"spaces/s/segments?prefix=a/&limit=2&after={first['next']}").json
    assert ([one["segment"] for one in second["segments"]], second["next"]) == (["a/3"], None)
    assert served.ask("GET", first["segments"][0]["href"]).json == first["segments"][0]
    assert served.ask("GET", "/v1/stores").json["stores"] == [str(served.id)]


def test_the_status_of_a_segment_has_its_last_sequence_as_tag(served: Served) -> None:
    path = "spaces/s/segments/a"
    assert served.ask("HEAD", path).status == 404
    served.store.produce("s", "a", [Record(b"1")])
    head = served.ask("HEAD", path)
    assert (head.status, head.headers["etag"], head.body) == (200, '"1"', b"")
    for header, status in (
        ('"1"', 304), ('W/"1"', 304), ('"0", "1"', 304), ("*", 304), ('"0"', 200), ('"11"', 200), ("1", 200), ("", 200),
    ):  # fmt: skip
        assert served.ask("GET", path, headers={"If-None-Match": header}).status == status, header
    assert served.ask("GET", path).json["last_sequence"] == 1


def test_sizes_count_what_is_kept(served: Served) -> None:
    served.store.produce("s", "a", [Record(b"12345")])
    for path in ("/v1/stores/_", "spaces/s/size"):
        size = served.ask("GET", path).json
        assert (size["entries"], size["segments"], size["payload_bytes"]) == (1, 1, 5)


def test_removing_is_a_dry_run_unless_it_is_meant(served: Served) -> None:
    served.store.produce("s", "a", [Record(b"1", {"user": "7"}), Record(b"2"), Record(b"3")])

    def left() -> list[bytes]:
        return [entry.payload for entry in served.store.consume_segment("s", "a")]

    assert served.ask("POST", "spaces/s/trim", {"segment": "a", "before": 2}).json["entries"] == 1
    assert served.ask("POST", "spaces/s/erase", {"metadata": {"user": "7"}}).json["entries"] == 1
    assert left() == [b"1", b"2", b"3"]
    assert served.ask("POST", "spaces/s/erase", {"metadata": {"user": "7"}, "dry_run": False}).status == 200
    assert left() == [b"2", b"3"]
    assert served.ask("POST", "spaces/s/trim", {"segment": "a", "keep_entries": 1, "dry_run": False}).status == 200
    assert left() == [b"3"]
    assert served.ask("DELETE", "spaces/s/segments/a").json["entries"] == 1
    assert left() == []
    assert served.ask("DELETE", "spaces/s").status == 204
    assert served.ask("DELETE", "spaces/s").status == 204
    assert list(served.store.get_spaces()) == []


def test_another_store_is_named_by_its_uuid(served: Served) -> None:
    other = uuid4()
    path = f"/v1/stores/{other}/spaces/s/segments/a/entries"
    assert served.ask("POST", path, {"text": "x"}).status == 201
    assert served.ask("GET", path).json["entries"][0]["text"] == "x"
    assert list(served.store.get_spaces()) == []
    assert served.ask("GET", "/v1/stores/nothing/spaces").status == 404


def test_the_answer_for_a_store_that_was_deleted_beside_the_server_names_no_path(tmp_path: Path) -> None:
    served = Served(tmp_path.as_uri())
    try:
        entries = "spaces/s/segments/a/entries"
        assert served.ask("POST", entries, {"text": "x"}).status == 201
        with streamkit.connect(tmp_path.as_uri()) as client:
            client.delete_store(served.id)
        refused = served.ask("POST", entries, {"text": "y"})
        assert (refused.status, refused.json["type"]) == (503, "urn:streamkit:store-closed")
        assert str(tmp_path) not in refused.body.decode()
        assert served.ask("POST", entries, {"text": "y"}).status == 201
    finally:
        served.close()
