"""`streamkit init` makes a project that runs as it is."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from streamkit import __version__
from streamkit.cli.app import run
from streamkit.cli.init import Cloud, project_files

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("cloud", list(Cloud))
def test_a_new_project_passes_its_own_tests(cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my shop"
    assert run(["init", str(folder), "--cloud", cloud]) == 0
    assert "read README.md" in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    names = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert {"shop.py", "worker.py", "totals.py", "nightly.py", "README.md", "requirements.txt"} <= names
    assert ("template.yaml" in names, "main.bicep" in names) == (cloud == "aws", cloud == "azure")


@pytest.mark.parametrize("cloud", list(Cloud))
def test_every_file_of_a_project_is_well_formed(cloud: Cloud) -> None:
    for name, text in project_files(cloud).items():
        assert "{store}" not in text, name
        if name.endswith(".py"):
            ast.parse(text)
        elif name.endswith(".json"):
            json.loads(text)
    extra = {"aws": "s3", "azure": "azure"}[cloud]
    assert f"./streamkit_store-{__version__}-py3-none-any.whl[{extra}]" in project_files(cloud)["requirements.txt"]


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("kept")
    assert run(["init", str(tmp_path)]) == 1
    assert "is not empty: name a new folder" in capsys.readouterr().err
    assert run(["init", str(tmp_path / "mine")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_templates_of_a_project_are_valid(tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text(project_files(Cloud.aws)["template.yaml"])
    lint = [str(Path(sys.executable).parent / "cfn-lint"), str(template)]
    done = subprocess.run(lint, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    bicep = (ROOT / "infra" / "azure" / "main.bicep").read_text()
    assert project_files(Cloud.azure)["main.bicep"] == bicep
    settings = yaml.load(template.read_text(), Loader=yaml.BaseLoader)["Resources"]
    assert {name for name, one in settings.items() if one["Type"] == "AWS::Lambda::Function"} == {"Function", "Worker"}
