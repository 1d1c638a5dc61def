"""The function examples, as their platforms call them, and the templates that deploy them."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket, S3Server

ROOT = Path(__file__).parent.parent.parent
STORE = "7d9f2c1e-0000-4000-8000-000000000001"

_COLD = """
import json, sys, time
began = time.perf_counter()
sys.path.insert(0, sys.argv[1])
import {module}
answer = {call}
store = {module}.store()
milliseconds = (time.perf_counter() - began) * 1000
print(json.dumps([answer, milliseconds, dict(store.statistics().requests)]))
"""


@pytest.fixture(params=["s3", "azure"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a cloud, with the function's environment set to a fresh place in its emulator."""
    if request.param == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        monkeypatch.setenv("STREAMKIT_URL", bucket.url("orders"))
    else:
        azurite: Azurite = request.getfixturevalue("azurite")
        monkeypatch.setenv("STREAMKIT_URL", azurite.url("t" + uuid4().hex[:10]))
    monkeypatch.setenv("STREAMKIT_STORE", str(uuid4()))
    return str(request.param)


def _load(folder: str, module: str) -> ModuleType:
    """A fresh copy of the module, as a new environment of the function would have."""
    spec = importlib.util.spec_from_file_location(module, ROOT / "examples" / folder / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def function(cloud: str) -> Iterator[Any]:
    """append(order, sequence, event, id) -> (status, sequence), through the example's own entry point."""
    if cloud == "s3":
        module = _load("aws_lambda", "handler")

        def append(order: str, sequence: int, event: object, id: str) -> tuple[int, int]:
            answer = module.handler({"order": order, "sequence": sequence, "event": event, "id": id}, None)
            return answer["statusCode"], answer["sequence"]
    else:
        pytest.importorskip("azure.functions")
        module = _load("azure_functions", "function_app")
        import azure.functions as func

        orders = next(f for f in module.app.get_functions() if f.get_function_name() == "orders").get_user_function()

        def append(order: str, sequence: int, event: object, id: str) -> tuple[int, int]:
            body = json.dumps({"sequence": sequence, "event": event, "id": id}).encode()
            request = func.HttpRequest("POST", "/api/orders", body=body, route_params={"order": order})
            answer = orders(request)
            return answer.status_code, json.loads(answer.get_body())["sequence"]

    append.store = module.store  # type: ignore[attr-defined]
    yield append
    module.store().close()


def test_a_function_appends_with_state_kept_between_invocations(function: Any) -> None:
    assert function("42", 0, {"type": "placed"}, "a") == (200, 1)
    before = dict(function.store().statistics().requests)
    assert function("42", 1, {"type": "paid"}, "b") == (200, 2)
    after = function.store().statistics().requests
    spent = {kind: count - before.get(kind, 0) for kind, count in after.items() if count != before.get(kind, 0)}
    print("\na warm append with an idempotency key:", spent)
    assert [entry.payload for entry in function.store().consume_segment("orders", "order-42")] == [
        b'{"type": "placed"}',
        b'{"type": "paid"}',
    ]


def test_a_request_that_is_delivered_again_is_answered_and_not_written(function: Any) -> None:
    assert function("42", 0, {"type": "placed"}, "a") == (200, 1)
    assert function("42", 1, {"type": "paid"}, "b") == (200, 2)
    assert function("42", 0, {"type": "placed"}, "a") == (200, 1)
    assert function.store().segment_status("orders", "order-42").last_sequence == 2


def test_a_caller_that_has_not_seen_the_latest_is_refused(function: Any) -> None:
    assert function("42", 0, {"type": "placed"}, "a") == (200, 1)
    assert function("42", 0, {"type": "cancelled"}, "c") == (409, 1)
    assert function.store().segment_status("orders", "order-42").last_sequence == 1


def test_messages_of_sqs_are_written_once_and_those_that_fail_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMKIT_URL", f"memory://{uuid4().hex}")
    monkeypatch.setenv("STREAMKIT_STORE", str(uuid4()))
    module = _load("aws_lambda", "sqs")
    good = [{"messageId": f"m{at}", "body": json.dumps({"order": "42", "event": at})} for at in range(3)]
    bad = [{"messageId": "not json", "body": "{"}, {"messageId": "no order", "body": "{}"}]
    event = {"Records": [good[0], bad[0], good[1], bad[1], good[2], good[0]]}
    for _ in range(2):
        failed = module.handler(event, None)["batchItemFailures"]
        assert failed == [{"itemIdentifier": "not json"}, {"itemIdentifier": "no order"}]
    assert [entry.payload for entry in module.store().consume_space("orders")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "JSON"),
        (b"[]", "a JSON object"),
        (b"{}", "lacks sequence, event, id"),
        (b'{"sequence": "1", "event": 1, "id": "a"}', "an integer"),
        (b'{"sequence": true, "event": 1, "id": "a"}', "an integer"),
        (b'{"sequence": 0, "event": 1, "id": 7}', "a text"),
    ],
)
def test_the_azure_function_answers_bad_input_with_400(body: bytes, problem: str) -> None:
    func = pytest.importorskip("azure.functions")
    module = _load("azure_functions", "function_app")
    orders = next(f for f in module.app.get_functions() if f.get_function_name() == "orders").get_user_function()
    answer = orders(func.HttpRequest("POST", "/api/orders", body=body, route_params={"order": "42"}))
    assert answer.status_code == 400
    assert problem in json.loads(answer.get_body())["error"]


def test_a_cold_process_appends(cloud: str, function: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert function("42", 0, {"type": "placed"}, "a") == (200, 1)
    if cloud == "s3":
        module, call = "handler", "handler.handler({'order': '42', 'sequence': 1, 'event': 'paid', 'id': 'b'}, None)"
        expected: Any = {"statusCode": 200, "sequence": 2}
        folder = "aws_lambda"
    else:
        module, call = "function_app", "function_app.append('42', {'sequence': 1, 'event': 'paid', 'id': 'b'})"
        expected = [200, 2]
        folder = "azure_functions"
    done = subprocess.run(
        [sys.executable, "-c", _COLD.format(module=module, call=call), str(ROOT / "examples" / folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=dict(os.environ),
    )
    answer, milliseconds, requests = json.loads(done.stdout)
    assert answer == expected
    assert function.store().segment_status("orders", "order-42").last_sequence == 2
    with capsys.disabled():
        print(f"\n{cloud}: cold process, imports and first append: {milliseconds:.0f} ms, requests {requests}")


@pytest.mark.s3
def test_a_scheduled_function_leads_alone(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMKIT_URL", s3_bucket.url("jobs"))
    monkeypatch.setenv("STREAMKIT_STORE", str(uuid4()))
    first, second = _load("aws_lambda", "scheduled"), _load("aws_lambda", "scheduled")
    first.store().produce("orders", "order-1", [first.Record(b"{}")])
    with second.store().lease("count-orders"):
        assert first.handler({}, None) == {"ran": False, "because": "LeaseNotAcquired"}
    assert first.handler({}, None) == {"ran": True, "orders": 1}
    assert first.store().peek("reports", "orders").payload == b'{"orders": 1}'


# -- templates ------------------------------------------------------------------------------------------------------


def test_the_cloudformation_template_has_no_finding() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "cfn-lint"), str(ROOT / "infra" / "aws" / "template.yaml")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.s3
def test_the_cloudformation_template_deploys(s3_server: S3Server, s3_credentials: None) -> None:
    import boto3

    def client(service: str) -> Any:
        return boto3.client(service, endpoint_url=s3_server.endpoint, region_name="us-east-1")

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(ROOT / "examples" / "aws_lambda" / "handler.py", "handler.py")
    code = f"code-{uuid4().hex}"
    client("s3").create_bucket(Bucket=code)
    client("s3").put_object(Bucket=code, Key="handler.zip", Body=packed.getvalue())
    stack = f"streamkit-{uuid4().hex}"
    parameters = {"StoreId": STORE, "CodeBucket": code, "CodeKey": "handler.zip"}
    client("cloudformation").create_stack(
        StackName=stack,
        TemplateBody=(ROOT / "infra" / "aws" / "template.yaml").read_text(),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    deployed = client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    assert deployed["StackStatus"] == "CREATE_COMPLETE"
    outputs = {output["OutputKey"]: output["OutputValue"] for output in deployed["Outputs"]}
    configuration = client("lambda").get_function_configuration(FunctionName=outputs["FunctionName"])
    assert configuration["Environment"]["Variables"] == {"STREAMKIT_URL": outputs["Url"], "STREAMKIT_STORE": STORE}
    role = outputs["TenantRoleArn"].rpartition("/")[2]
    policy = client("iam").get_role_policy(RoleName=role, PolicyName="one-store")["PolicyDocument"]
    # The emulator gives it as it came from the template, not as JSON.
    objects, names = (ast.literal_eval(policy) if isinstance(policy, str) else policy)["Statement"]
    # Least privilege: only below the session's own store and archive, and no wildcard before it.
    bucket = f"arn:aws:s3:::{outputs['BucketName']}"
    own = ["streamkit/${aws:PrincipalTag/store}/*", "streamkit/archive/${aws:PrincipalTag/store}/*"]
    assert objects["Resource"] == [f"{bucket}/{place}" for place in own]
    writing = {"s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    assert set(objects["Action"]) == {"s3:GetObject", *writing}
    assert names["Resource"] == bucket
    assert names["Condition"] == {"StringLike": {"s3:prefix": own}}


def test_the_bicep_template_gives_the_function_data_roles_and_nothing_more() -> None:
    text = (ROOT / "infra" / "azure" / "main.bicep").read_text()
    given = re.findall(r"name: guid\((\w+)\.id, app\.id, (\w+)\)", text)
    assert sorted(given) == [
        ("runtime", "blobDataOwner"),
        ("stores", "blobDataContributor"),
        ("stores", "tableDataContributor"),
    ]
    assert text.count("allowSharedKeyAccess: false") == text.count("Microsoft.Storage/storageAccounts@") == 2
