"""The server where others run it: adapters of function platforms, and the templates in infra/serve."""

from __future__ import annotations

import ast
import asyncio
import base64
import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import azure.functions as func
import pytest
import yaml
from mangum import Mangum

import streamkit
from streamkit import Record, __version__
from streamkit.serve import app

ROOT = Path(__file__).parent.parent.parent
INFRA = ROOT / "infra" / "serve"
NAMES = ["plain", "with space", "a/b", "50%", "€", "~tilde", "..", "x" * 255]


def encoded(name: str) -> str:
    """The form of a name in a path that adapters do not change."""
    return "~" + base64.urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def through_mangum(url: str, store: str, method: str, path: str, body: str | None) -> tuple[int, Any]:
    """Call the function as API Gateway does, with the path decoded."""
    event = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": unquote(path),
        "rawQueryString": "",
        "headers": {"content-type": "application/json", "host": "api.example.com"},
        "requestContext": {
            "http": {"method": method, "path": unquote(path), "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1"},
            "domainName": "api.example.com",
            "stage": "$default",
        },
        "isBase64Encoded": False,
        **({} if body is None else {"body": body}),
    }
    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    try:
        answer = Mangum(app(url, store=store), lifespan="auto")(event, None)
    finally:
        loop.close()
    data = base64.b64decode(answer["body"]) if answer["isBase64Encoded"] else answer["body"]
    return answer["statusCode"], json.loads(data)


def through_azure(url: str, store: str, method: str, path: str, body: str | None) -> tuple[int, Any]:
    """Call the app as the Functions host does, with the path decoded."""
    request = func.HttpRequest(
        method,
        f"https://app.example.com{unquote(path)}",
        headers={"content-type": "application/json"},
        body=(body or "").encode(),
    )
    answer = asyncio.run(func.AsgiMiddleware(app(url, store=store)).handle_async(request))
    return answer.status_code, json.loads(answer.get_body())


@pytest.mark.parametrize("through", [through_mangum, through_azure])
@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_that_decodes_paths_keeps_names_exact(
    through: Callable[..., tuple[int, Any]], name: str, tmp_path: Path
) -> None:
    url, store = f"file://{tmp_path}/root", uuid4()
    path = f"/v1/stores/_/spaces/{encoded(name)}/segments/{encoded(name)}/entries"
    status, _ = through(url, str(store), "POST", path, '[{"json": {"n": 1}}]')
    assert status in (200, 201)
    with streamkit.connect(url) as client:
        assert [entry.payload for entry in client.store(store).consume_segment(name, name)] == [b'{"n": 1}']
    status, page = through(url, str(store), "GET", path, None)
    assert status == 200
    assert [entry["json"] for entry in page["entries"]] == [{"n": 1}]


@pytest.mark.parametrize("through", [through_mangum, through_azure])
def test_an_adapter_passes_problems_on(through: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    url, store = f"file://{tmp_path}/root", uuid4()
    with streamkit.connect(url) as client:
        client.store(store).produce("orders", "a", [Record(b"1")])
    status, problem = through(url, str(store), "POST", "/v1/stores/_/spaces/orders/segments/a/entries", "[{")
    assert (status, problem["type"]) == (400, "urn:streamkit:invalid-body")


# -- the templates -----------------------------------------------------------------------------------------------


def requirement() -> tuple[str, set[str]]:
    """The file name of our wheel, and its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = f"{project['name'].replace('-', '_')}-{__version__}-py3-none-any.whl"
    return wheel, set(project["optional-dependencies"])


def serve_options(command: list[str]) -> list[str]:
    """Fails unless `streamkit serve` has all options of the command line; returns the values of --host."""
    assert command[:2] == ["streamkit", "serve"] or command[:4] == ["python3", "-m", "streamkit.cli", "serve"]
    shown = subprocess.run(
        [sys.executable, "-m", "streamkit.cli", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "NO_COLOR": "1"},
    ).stdout
    options = [word for word in command if word.startswith("--")]
    assert [option for option in options if option not in shown] == []
    return [command[at + 1] for at, word in enumerate(command) if word == "--host"]


def test_the_image_runs_the_server_as_a_user_of_its_own_with_a_health_check() -> None:
    text = (INFRA / "container" / "Dockerfile").read_text().replace("\\\n", "")
    steps = [line.partition(" ")[::2] for line in text.splitlines() if line and not line.startswith("#")]
    words = [word for word, _ in steps]
    wheel, extras = requirement()
    install = next(rest for word, rest in steps if word == "RUN")
    found = re.search(rf"/tmp/{re.escape(wheel)}\[([a-z0-9,]+)\]", install)
    assert found is not None
    assert "serve" in found[1].split(",")
    assert set(found[1].split(",")) <= extras
    user = next(rest for word, rest in steps if word == "USER")
    assert user.isdigit()
    assert int(user) > 0
    assert words.index("RUN") < words.index("USER") < words.index("ENTRYPOINT")
    probe = ast.literal_eval(next(rest for word, rest in steps if word == "HEALTHCHECK").partition("CMD ")[2])
    assert "/healthz" in probe[2]
    compile(probe[2], "probe", "exec")
    command = ast.literal_eval(next(rest for word, rest in steps if word == "ENTRYPOINT"))
    assert serve_options(command) == ["0.0.0.0"]
    assert "--keys" in command


def test_the_unit_is_one_that_systemd_takes() -> None:
    path = INFRA / "systemd" / "streamkit.service"
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    service = unit["Service"]
    command = service["ExecStart"].split()
    assert serve_options(["streamkit", *command[1:]]) == ["127.0.0.1"]
    assert service["DynamicUser"] == "yes"
    assert int(service["TimeoutStopSec"]) > 10
    assert service["StateDirectory"] in service["Environment"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    judged = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    complaints = [line for line in judged.stderr.splitlines() if path.name in line and "is not executable" not in line]
    assert complaints == []


def test_the_stack_of_lambda_is_valid_and_reaches_one_store() -> None:
    path = INFRA / "lambda" / "template.yaml"
    judged = subprocess.run([str(Path(sys.executable).parent / "cfn-lint"), str(path)], capture_output=True, text=True)
    assert (judged.returncode, judged.stdout) == (0, "")
    template = yaml.load(path.read_text(), Loader=_Tags)
    function = template["Resources"]["Function"]["Properties"]
    assert (INFRA / "lambda" / function["Handler"]).is_file()
    assert template["Resources"]["Url"]["Properties"]["InvokeMode"] == "RESPONSE_STREAM"
    for statement in template["Resources"]["Role"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]:
        text = json.dumps(statement)
        assert "${StoreId}/*" in text
        assert "*" not in statement["Action"]
    lines = (INFRA / "lambda" / "run.sh").read_text().splitlines()
    command = lines[-1].split()
    assert command[0] == "exec"
    assert serve_options(command[1:]) == ["127.0.0.1"]
    assert function["Environment"]["Variables"]["AWS_LWA_PORT"] in command


class _Tags(yaml.SafeLoader):
    """Reads the short forms of CloudFormation's functions as their arguments."""


_Tags.add_multi_constructor("!", lambda loader, suffix, node: loader.construct_scalar(node))


@pytest.mark.parametrize("folder", ["lambda", "mangum", "azure_functions"])
def test_requirements_name_our_wheel_with_extras_that_it_has(folder: str) -> None:
    wheel, extras = requirement()
    (line,) = [line for line in (INFRA / folder / "requirements.txt").read_text().splitlines() if line.startswith("./")]
    found = re.fullmatch(rf"\./{re.escape(wheel)}\[([a-z0-9,]+)\]", line)
    assert found is not None
    assert {"serve"} < set(found[1].split(",")) <= extras


@pytest.mark.parametrize(("folder", "module"), [("mangum", "handler"), ("azure_functions", "function_app")])
def test_an_app_of_a_platform_begins_with_its_settings(folder: str, module: str, tmp_path: Path) -> None:
    shutil.copy(INFRA / folder / f"{module}.py", tmp_path)
    keys = [sys.executable, "-m", "streamkit.cli", "keys", "create", str(tmp_path / "keys.json"), "--scope", "read"]
    subprocess.run(keys, check=True, capture_output=True)
    subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        cwd=tmp_path,
        env={"STREAMKIT_URL": f"file://{tmp_path}/root", "STREAMKIT_STORE": str(uuid4())},
        check=True,
    )
