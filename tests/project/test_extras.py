"""The extras: each one alone, with its requirements and nothing else, runs the README's program and one of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


def _sizes() -> ModuleType:
    spec = spec_from_file_location("sizes", ROOT / "infra" / "release" / "sizes.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SIZES = _sizes()
STORE = "store = streamkit.connect(f'file://{os.getcwd()}/own').store('7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55')\n"
WRITTEN = f"{STORE}store.produce('orders', 'order-42', [streamkit.Record(b'1'), streamkit.Record(b'2')])\n"
PROGRAMS = {
    "s3": "streamkit.connect('s3://bucket/prefix?region=eu-north-1').close(); print('ok')",
    "azure": "streamkit.connect('azurite:///prefix').close(); print('ok')",
    "archive": f"""{WRITTEN}
print(store.archive('orders').entries, store.to_arrow('orders').read_all().num_rows)
assert [entry.tier for entry in store.consume_space('orders')] == ['cold', 'cold']
print('ok')
""",
    "spark": "import pyspark; from streamkit.spark import read_space, write_space; print('ok')",
    "cli": f"""{WRITTEN}
from streamkit.cli.app import run
assert run(['--url', f'file://{{os.getcwd()}}/own', '--store', str(store.id), 'consume', 'orders']) == 0
assert run(['init', 'shop']) == 0
print('ok')
""",
    "serve": """
import asyncio, streamkit.serve, uvicorn
async def ask():
    said = []
    async def receive(): return {'type': 'http.request', 'body': b'', 'more_body': False}
    async def send(message): said.append(message)
    scope = {'type': 'http', 'method': 'GET', 'path': '/healthz', 'raw_path': b'/healthz', 'query_string': b'',
             'headers': [], 'http_version': '1.1', 'scheme': 'http', 'client': ('127.0.0.1', 1)}
    await streamkit.serve.app('memory://')(scope, receive, send)
    return said[0]['status']
assert asyncio.run(ask()) == 200
print('ok')
""",
    "speed": "from streamkit import speed; assert speed.codec().startswith('compiled'), speed.codec(); print('ok')",
    "http2": "import zttp, streamkit.serve, uvicorn; print('ok')",
    "otel": """
from streamkit import telemetry
telemetry.enable()
with streamkit.connect('memory://') as client:
    client.store('7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55').produce('orders', 'order-42', [streamkit.Record(b'1')])
telemetry.disable()
print('ok')
""",
    "jwt": "from streamkit.serve import Tokens; Tokens(secret=b'0' * 32); print('ok')",
    "eventsourcing": """
os.environ.update(PERSISTENCE_MODULE='streamkit.adapters.eventsourcing', STREAMKIT_URL='memory://',
    STREAMKIT_STORE='7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55')
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
application = Application()
dog = Aggregate()
application.save(dog)
assert application.repository.get(dog.id).id == dog.id
print('ok')
""",
    "langgraph": """
import asyncio
from uuid import uuid4
from streamkit.adapters.langgraph import StreamkitSaver
async def none():
    async with StreamkitSaver.from_url('memory://', uuid4()) as saver:
        return await saver.aget_tuple({'configurable': {'thread_id': '1', 'checkpoint_ns': ''}})
assert asyncio.run(none()) is None
print('ok')
""",
    "kombu": """
import kombu
options = {'url': f'file://{os.getcwd()}/own', 'store': '7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55'}
with kombu.Connection(transport='streamkit.adapters.kombu:Transport', transport_options=options) as connection:
    queue = connection.SimpleQueue('mails')
    queue.put({'hello': 1})
    print('ok' if queue.get(timeout=30).payload == {'hello': 1} else '')
""",
}
"""A program of each extra, for the installed packages. Other tests have the servers of S3 and Azure."""


def _environment(extra: str, folder: Path) -> Path:
    """A Python with links to the files of the extra's distributions, and to this checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    own = SIZES.NAME
    for name in SIZES.names(extra) - {own}:
        for file in distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    target.symlink_to(str(file.locate()))
    for package in (ROOT / "streamkit", *(ROOT / "backends").glob("streamkit_*")):
        (site / package.name).symlink_to(package)
    installed = next(file for file in distribution(own).files or () if file.name == "METADATA")
    (site / installed.parent.name).symlink_to(Path(str(installed.locate())).parent)
    return folder / "bin" / "python"


@pytest.mark.parametrize("extra", SIZES.extras())
def test_an_extra_alone_runs_the_readme_and_its_own_program(extra: str, tmp_path: Path) -> None:
    assert extra in PROGRAMS, "a new extra needs a program here"
    python = _environment(extra, tmp_path / "environment")
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    readme = found[1].replace("file:///tmp/streamkit-readme", f"file://{tmp_path}/store")
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "STREAMKIT_PURE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    program = f"{readme}\nimport os, streamkit\n{PROGRAMS[extra]}"
    done = subprocess.run(
        [str(python), "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('1 {"placed": 3}\n')
    assert done.stdout.endswith("ok\n"), done.stdout


def test_the_core_and_the_core_with_s3_are_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert SIZES.main() == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert re.search(r"^core +\d+\.\d MiB   at most 30$", said, re.MULTILINE)
    assert {"msgspec", "boto3", "botocore"} <= SIZES.names("s3")
    assert "boto3" not in SIZES.names("")
