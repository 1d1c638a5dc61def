"""The image of the function that reads archives: its files exist, and are those of the zip."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from streamkit import __version__

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "aws_lambda"


def _instructions() -> list[tuple[str, str]]:
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_copies_files_that_exist_and_calls_a_function_in_one_of_them() -> None:
    copied = [name for word, rest in _instructions() if word == "COPY" for name in rest.split()[:-1]]
    wheel = next(name for name in copied if name.endswith(".whl"))
    for name in copied:
        assert name == wheel or (FOLDER / name).is_file()
    (command,) = [ast.literal_eval(rest) for word, rest in _instructions() if word == "CMD"]
    module, _, function = command[0].partition(".")
    assert f"{module}.py" in copied
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_image_installs_our_wheel_with_extras_that_it_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = f"{project['name'].replace('-', '_')}-{__version__}-py3-none-any.whl"
    (install,) = [rest for word, rest in _instructions() if word == "RUN"]
    (found,) = re.findall(r'"/tmp/([^"\[]+)\[([a-z0-9,]+)\]"', install)
    assert found[0] == wheel
    assert f"./{wheel}[" in (FOLDER / "requirements.txt").read_text()
    extras = set(found[1].split(","))
    assert extras <= set(project["optional-dependencies"])
    assert "archive" in extras


def test_the_image_has_the_python_of_the_template() -> None:
    (base,) = [rest for word, rest in _instructions() if word == "FROM"]
    template = (ROOT / "infra" / "aws" / "template.yaml").read_text()
    assert base.partition(":")[2] in re.findall(r"Runtime: python(\S+)", template)
