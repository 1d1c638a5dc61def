"""Keys over HTTP, the figures of a store and the entries of a space by time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_serve import Served

from streamkit import Record
from streamkit.serve.keys import KeyFile
from streamkit.serve.v1 import statistics


def test_activity_counts_each_entry_once_between_two_times(served: Served) -> None:
    for at in range(5):
        served.store.produce("orders", f"order-{at}", [Record(b"12345")] * 4)
    found = served.ask("GET", "spaces/orders/activity?bars=7").json
    assert (sum(found["counts"]), sum(found["bytes"]), len(found["counts"]), found["complete"]) == (20, 100, 7, True)
    times = [entry.timestamp for entry in served.store.consume_space("orders")]
    assert (found["since"], found["until"]) == (min(times), max(times))
    assert found["since"] + found["step"] * 7 > found["until"]
    later = served.ask("GET", f"spaces/orders/activity?from={times[8]}&until={times[11]}").json
    assert sum(later["counts"]) == sum(times[8] <= time <= times[11] for time in times)
    empty = served.ask("GET", "spaces/none/activity").json
    assert (sum(empty["counts"]), empty["complete"]) == (0, True)
    assert served.ask("GET", "spaces/orders/activity?from=2&until=1").status == 400


def test_activity_looks_at_so_many_entries_and_says_so(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_MOST", 10)
    served = serve()
    served.store.produce("orders", "1", [Record(b"x")] * 25)
    found = served.ask("GET", "spaces/orders/activity").json
    assert (sum(found["counts"]), found["complete"]) == (10, False)


def test_statistics_tell_what_the_process_has_committed(served: Served) -> None:
    for _ in range(3):
        served.ask("POST", "spaces/orders/segments/1/entries", [{"json": 1}, {"json": 2}])
    found = served.ask("GET", "statistics").json
    assert (found["transactions"], found["entries"], found["dollars"]) == (3, 6, 0.0)
    assert found["storage"] in ("memory", "file")
    assert sum(found["requests"].values()) >= 3
    assert not any(kind.startswith("bytes") for kind in found["requests"])


def test_requests_have_the_price_of_their_service() -> None:
    counts = {"PUT": 1_000_000, "GET": 2_000_000, "DELETE": 9}
    assert statistics.dollars("s3", counts) == pytest.approx(5.8)
    assert statistics.dollars("azure", {"table.get": 1_000_000}) == pytest.approx(0.036)
    assert statistics.dollars("other", counts) is None


def test_keys_are_listed_without_secrets_made_and_revoked(serve: Callable[..., Served], tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    admin = {"Authorization": f"Bearer {keys.create(['admin'], name='first')}"}
    served = serve(keys=keys.path)
    made = served.ask("POST", "/v1/keys", {"scopes": ["read"], "spaces": ["orders"], "ttl": 60, "name": "x"}, admin)
    assert made.status == 201
    key = {"Authorization": f"Bearer {made.json['key']}"}
    assert served.ask("GET", "spaces/orders", headers=key).status == 404
    assert served.ask("GET", "spaces/other", headers=key).status == 403
    listed = served.ask("GET", "/v1/keys", headers=admin)
    assert [each["name"] for each in listed.json["keys"]] == ["first", "x"]
    assert b"hash" not in listed.body
    assert made.json["key"].rpartition("_")[2].encode() not in listed.body
    assert served.ask("DELETE", f"/v1/keys/{made.json['id']}", headers=admin).status == 204
    assert served.ask("GET", "spaces/orders", headers=key).status == 401
    assert served.ask("DELETE", f"/v1/keys/{made.json['id']}", headers=admin).status == 404


def test_only_a_key_for_everything_makes_keys(serve: Callable[..., Served], tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    served = serve(keys=keys.path)
    wide = {"Authorization": f"Bearer {keys.create(['admin'])}"}
    bounds = ({"stores": [served.id]}, {"spaces": ["a"]}, {"segments": ["a"]})
    narrow = [keys.create(["admin"], **bound) for bound in bounds]  # type: ignore[arg-type]
    for key in (*narrow, keys.create(["read", "write", "delete"])):
        asked = {"Authorization": f"Bearer {key}"}
        for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/x")):
            body = {"scopes": ["admin"]} if method == "POST" else None
            assert served.ask(method, path, body, asked).status == 403
    assert len(keys.read()) == 5
    for wrong in (
        {"scopes": []},
        {"scopes": ["all"]},
        {"scopes": ["read"], "spaces": [""]},
        {"scopes": ["read"], "ttl": 0},
    ):
        assert served.ask("POST", "/v1/keys", wrong, wide).status == 400, wrong
    assert serve().ask("GET", "/v1/keys").status == 409


def test_keys_that_are_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    files = [KeyFile(tmp_path / "keys.json") for _ in range(2)]
    threads = [threading.Thread(target=lambda file=files[at % 2]: file.create(["read"])) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files[0].read()) == 16


def test_operations_are_listed_for_the_spaces_of_a_key(serve: Callable[..., Served], tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    served = serve(keys=keys.path)
    wide = {"Authorization": f"Bearer {keys.create(['admin'])}"}
    narrow = {"Authorization": f"Bearer {keys.create(['admin'], spaces=['orders'])}"}
    for space in ("orders", "other", None):
        served.ask("POST", "operations", {"kind": "maintain", "space": space}, wide)
    listed = served.ask("GET", "operations", headers=wide).json["operations"]
    assert {each["space"] for each in listed} == {"orders", "other", None}
    assert [each["space"] for each in served.ask("GET", "operations", headers=narrow).json["operations"]] == ["orders"]
    assert len(served.ask("GET", "operations?limit=2", headers=wide).json["operations"]) == 2
