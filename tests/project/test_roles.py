"""Roles of the templates allow all that the library does: the role's policy judges each request on its way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

import pytest
import yaml
from fix_proxy import PASS, Fault, Proxy, Request, status
from fix_s3 import S3Bucket

import streamkit_azure
import streamkit_s3
from streamkit.archive.location import ArchiveLocation

INFRA = Path(__file__).parent.parent.parent / "infra"
OURS, THEIRS = uuid4(), uuid4()
PREFIX = "stream/kit"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>by its role</Message></Error>"


class Template(yaml.SafeLoader):
    """A loader of CloudFormation's YAML. References become text such as ${Bucket.Arn}, as in !Sub."""


Template.add_constructor("!Sub", lambda loader, node: node.value)
Template.add_multi_constructor("!", lambda loader, tag, node: f"${{{getattr(node, 'value', '')}}}")


class Call(NamedTuple):
    """A permission that a role must give. `name` is an object's name, or the prefix of a list, if any."""

    action: str
    name: str | None


class Role:
    """A judge of calls, as IAM with the policies of one role in a template: calls that no statement allows are
    denied."""

    def __init__(self, template: str, role: str, values: Mapping[str, str]) -> None:
        document = yaml.load((INFRA / "aws" / template).read_text(), Template)
        policies = document["Resources"][role]["Properties"]["Policies"]
        self._values = values
        self.statements = [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]
        assert all(statement["Effect"] == "Allow" for statement in self.statements)

    def _resolved(self, found: str | list[str]) -> list[str]:
        texts = [found] if isinstance(found, str) else found
        return [re.sub(r"\$\{!?([^}]+)\}", lambda name: self._values[name[1]], text) for text in texts]

    def allows(self, call: Call) -> bool:
        return any(self._allows(statement, call) for statement in self.statements)

    def _allows(self, statement: dict[str, Any], call: Call) -> bool:
        bucket = f"arn:aws:s3:::{self._values['Bucket']}"
        resource = bucket if call.action == "s3:ListBucket" else f"{bucket}/{call.name}"
        if call.action not in self._resolved(statement["Action"]):
            return False
        if not any(_like(pattern, resource) for pattern in self._resolved(statement["Resource"])):
            return False
        conditions = statement.get("Condition", {"StringLike": {}})
        assert set(conditions) == {"StringLike"}
        assert set(conditions["StringLike"]) <= {"s3:prefix"}
        return all(
            call.name is not None and any(_like(pattern, call.name) for pattern in self._resolved(patterns))
            for patterns in conditions["StringLike"].values()
        )


def _like(pattern: str, text: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), text, re.DOTALL) is not None


def calls_of(request: Request) -> Iterator[Call]:
    """Return the permissions for a request to S3 in the form with the bucket in the path."""
    parts = urlsplit(request.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    name = unquote(parts.path).removeprefix("/").partition("/")[2]
    if "delete" in query:
        keys = ET.fromstring(request.body).iterfind(".//{*}Key")
        yield from (Call("s3:DeleteObject", key.text) for key in keys)
    elif not name:
        assert request.method in ("GET", "HEAD"), request.target
        yield Call("s3:ListBucket", query["prefix"][0] if "prefix" in query else None)
    elif request.method == "DELETE":
        yield Call("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", name)
    else:
        yield Call("s3:GetObject" if request.method in ("GET", "HEAD") else "s3:PutObject", name)
    if source := request.headers.get("x-amz-copy-source"):
        yield Call("s3:GetObject", unquote(source).removeprefix("/").partition("/")[2])


class Guarded:
    """A bucket, and a way to it on which a role decides."""

    def __init__(self, bucket: S3Bucket, proxy: Proxy) -> None:
        self.bucket = bucket
        self.proxy = proxy
        self.denied: list[Call] = []
        self.actions: set[str] = set()

    def role(self, template: str, role: str) -> Role:
        """The role, for the store OURS; from now on it decides."""
        values = {"Bucket": self.bucket.name, "Bucket.Arn": f"arn:aws:s3:::{self.bucket.name}", "Prefix": PREFIX}
        values |= {"aws:PrincipalTag/store": str(OURS), "StoreId": str(OURS), "AWS::Partition": "aws"}
        values |= {"CodeBucket": "code", "CodePrefix": "spark"}
        found = Role(template, role, values)

        def judge(request: Request) -> Fault:
            calls = list(calls_of(request))
            self.actions |= {call.action for call in calls}
            if refused := [call for call in calls if not found.allows(call)]:
                self.denied += refused
                return status(403, DENIED, {"Content-Type": "application/xml"})
            return PASS

        self.proxy.plan = judge
        return found

    def run(self, work: str, *, as_role: bool = True) -> Any:
        """Run the statements in `work` in a process that reaches the bucket through the role; return `found`.

        Of its own, because no other Python thread runs while delta-rs waits for some answers: not the proxy's either.
        """
        url = self.bucket.url(PREFIX, endpoint_url=self.proxy.endpoint if as_role else self.bucket.server.endpoint)
        program = _PROGRAM.format(
            url=url, ours=OURS, theirs=THEIRS, work=textwrap.indent(textwrap.dedent(work), "    ")
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{done.stderr}; denied: {self.denied}"
        return json.loads(done.stdout)


@pytest.fixture
def guarded(s3_bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy]) -> Guarded:
    return Guarded(s3_bucket, make_proxy(s3_bucket.server.host, s3_bucket.server.port))


_PROGRAM = """
import json
import streamkit
from streamkit import AccessDenied, Record, StreamkitError
from streamkit.archive.compact import compact_space

SPACE, OURS, THEIRS = "orders, all", "{ours}", "{theirs}"

def write(client, id):
    store = client.store(id)
    store.create_space(SPACE, archive_grace=1.0)
    for number in range(4):
        store.produce(SPACE, f"order/{{number % 2}}", [Record(b"%d" % number)], idempotency_key=str(number))
    return store

def tiers(client, id):
    return [entry.tier for entry in client.store(id).consume_space(SPACE)]

def refused(call, *args, **options):
    try:
        call(*args, **options)
    except StreamkitError as error:
        return type(error).__name__

found = []
with streamkit.connect("{url}", timeout=10) as client:
{work}
print(json.dumps(found))
"""


@pytest.mark.s3
def test_a_tenants_session_may_do_all_that_a_tenant_does(guarded: Guarded) -> None:
    guarded.role("template.yaml", "TenantRole")
    found = guarded.run(
        """
        store = write(client, OURS)
        with store.lease("archiver"):
            store.archive(SPACE)
        store.produce(SPACE, "order/2", [Record(b"new")])
        store.archive(SPACE)
        compact_space(store._archive(SPACE), 64 << 20, 0.0)
        store.produce(SPACE, "order/3", [Record(b"hot")])
        store.maintain()
        found.append(store.verify().ok)
        with streamkit.connect("{url}", timeout=10) as another:
            found.append(tiers(another, OURS))
        client.delete_store(OURS)
        """.replace("{url}", guarded.bucket.url(PREFIX, endpoint_url=guarded.proxy.endpoint))
    )
    assert guarded.denied == []
    assert found == [True, ["cold"] * 5 + ["hot"]]
    assert guarded.actions >= {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"}
    names = guarded.bucket.names()
    # The ends of the logs, and the empty transactions in the place of the last ones. Nothing else remains.
    assert all("/p." in name and "/K4WD-" in name for name in names)
    assert len(names) < 10


@pytest.mark.s3
def test_a_tenants_session_reaches_no_other_store_and_no_other_archive(guarded: Guarded) -> None:
    guarded.run("write(client, THEIRS).archive(SPACE)", as_role=False)
    role = guarded.role("template.yaml", "TenantRole")
    found = guarded.run(
        """
        found.append(refused(tiers, client, THEIRS))
        found.append(refused(client.store(THEIRS).produce, SPACE, "order/0", [Record(b"")]))
        found.append(refused(lambda: list(client.stores())))
        """
    )
    assert found == ["AccessDenied"] * 3
    names = guarded.bucket.names()
    assert any(name.startswith(f"{PREFIX}/archive/{THEIRS}/") for name in names)
    for name in names:
        for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"):
            assert not role.allows(Call(action, name)), name
        for end, character in enumerate(name):
            if character == "/":
                assert not role.allows(Call("s3:ListBucket", name[: end + 1])), name
    assert not role.allows(Call("s3:ListBucket", None))
    assert not role.allows(Call("s3:ListBucket", ""))


@pytest.mark.s3
def test_the_function_appends_and_reads_both_tiers_and_does_not_write_to_the_archive(guarded: Guarded) -> None:
    guarded.run("write(client, OURS).archive(SPACE)", as_role=False)
    role = guarded.role("template.yaml", "FunctionRole")
    found = guarded.run(
        """
        client.store(OURS).produce(SPACE, "order/2", [Record(b"new")], idempotency_key="new")
        found.extend(tiers(client, OURS))
        """
    )
    assert guarded.denied == []
    assert found == ["cold"] * 4 + ["hot"]
    root, _ = streamkit_s3.connect(guarded.bucket.url(PREFIX), timeout=10).archive_root()
    archived = ArchiveLocation(root, {}).table(OURS, "orders, all").removeprefix(f"s3://{guarded.bucket.name}/")
    assert [name for name in guarded.bucket.names() if name.startswith(f"{archived}/")]
    assert role.allows(Call("s3:GetObject", f"{archived}/_delta_log/00000000000000000000.json"))
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert not role.allows(Call(action, f"{archived}/part.parquet"))


@pytest.mark.s3
def test_the_jobs_reach_all_stores_and_archives_under_the_prefix_and_nothing_beside(guarded: Guarded) -> None:
    role = guarded.role("emr-serverless.yaml", "JobRole")
    found = guarded.run(
        """
        for id in (OURS, THEIRS):
            write(client, id)
        for id in client.stores():
            store = client.store(id)
            store.archive(SPACE)
            compact_space(store._archive(SPACE), 64 << 20, 0.0)
            found.extend(tiers(client, id))
        """
    )
    assert guarded.denied == []
    assert found == ["cold"] * 8
    for name in (f"{PREFIX}2/{OURS}/FORMAT", f"archive/{OURS}/x", str(OURS)):
        assert not role.allows(Call("s3:GetObject", name))
        assert not role.allows(Call("s3:ListBucket", name))


def test_on_azure_the_archives_are_in_the_account_that_the_roles_are_given_for() -> None:
    text = (INFRA / "azure" / "main.bicep").read_text()
    assert "{ name: 'STREAMKIT_URL', value: 'azure://${stores.name}/${prefix}' }" in text
    root, options = streamkit_azure.connect("azure://storesaccount/streamkit", timeout=10).archive_root()
    assert root.startswith("az://streamkit/"), "the container of the stores' own blobs"
    assert options["azure_storage_account_name"] == "storesaccount"
    for role in ("blobDataContributor", "tableDataContributor"):
        assert re.search(rf"scope: stores\n  name: guid\(stores\.id, app\.id, {role}\)", text)
