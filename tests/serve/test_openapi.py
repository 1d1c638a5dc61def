"""The OpenAPI document: it is valid, it names every route, and the server answers as it says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from fix_serve import Served
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from streamkit import Record
from streamkit.serve import app
from streamkit.serve.openapi import document

EXHAUSTIVE = bool(os.environ.get("STREAMKIT_EXHAUSTIVE"))
CASES = 400 if EXHAUSTIVE else 4
"""The number of examples for each operation."""
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
DOCUMENT = document(app("memory://openapi").router)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    found = Served("memory://openapi")
    for number in range(20):
        found.store.produce("s", f"segment {number % 3}", [Record(b'{"n":%d}' % number), Record(b"\xff")])
    yield found
    found.close()


def test_the_document_names_every_route_of_the_interface(served: Served) -> None:
    told = served.ask("GET", "/openapi.json").json
    assert told == json.loads(msgspec.json.encode(DOCUMENT))
    described = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    routes = served.application.router.routes
    own = {
        (route.method, route.pattern)
        for route in routes
        if route.pattern.startswith(("/v1/stores", "/v1/keys", "/v1/tickets", "/v1/ws"))
    }
    own = {(method, path) for method, path in own if "/stream/" not in path and method != "QUERY"}
    assert own == described
    for methods in told["paths"].values():
        for operation in methods.values():
            assert operation["summary"].endswith(".")
    ids = [operation["operationId"] for methods in told["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> bytes:
    """Any text, because the schema does not describe lines."""
    return str(value).encode(errors="replace")


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    return "\x00" not in str(case.path_parameters)


@SCHEMA.parametrize()
@settings(
    max_examples=CASES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=not EXHAUSTIVE,
)
def test_the_server_answers_as_the_document_says(served: Served, case: Any) -> None:
    if "st" in case.path_parameters:
        case.path_parameters["st"] = str(served.id)
    if case.query and "wait" in case.query:
        case.query["wait"] = "0"
    if isinstance(case.body, dict):
        case.body.pop("wait", None)
    if case.path.endswith(("/statuses", "/deliveries")):
        case.headers = {**(case.headers or {}), "Accept": "application/json"}  # it would never end
    case.call_and_validate(base_url=served.address, checks=CHECKS, timeout=60)
