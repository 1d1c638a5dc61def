"""The release: its distributions, its comparison with the last one, its bill of materials, and its workflows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from streamkit import __version__

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# -- distributions --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The source distribution of this checkout, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], ROOT)
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], unpacked)
    return [source, *folder.glob("*.whl")]


def test_the_distributions_have_the_one_version_and_pass_the_check_of_the_index(distributions: list[Path]) -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"] == {"path": "streamkit/__init__.py"}
    names = [f"streamkit_store-{__version__}.tar.gz", f"streamkit_store-{__version__}-py3-none-any.whl"]
    assert [path.name for path in distributions] == names
    said = _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)], ROOT)
    assert said.count("PASSED") == 2


def test_the_source_distribution_has_what_a_packager_tests_with(distributions: list[Path]) -> None:
    with tarfile.open(distributions[0]) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "tests/conftest.py", "streamkit/cli/project/main.bicep"} <= names
    assert not [name for name in names if name.startswith((".ci", ".github", ".venv", "build/", "dist/"))]


# -- the comparison with the last release ---------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a package `streamkit`, whose release v0.1.0 has a function `connect`."""
    (tmp_path / "streamkit" / "log").mkdir(parents=True)
    for name in ("__init__.py", "log/__init__.py"):
        (tmp_path / "streamkit" / name).write_text("def connect(url: str) -> None: ...\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n\n### Breaking\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    _run(["git", "init", "-q", "."], tmp_path)
    _run(["git", "add", "."], tmp_path)
    _run([*git, "commit", "-qm", "first"], tmp_path)
    return tmp_path


def _api() -> ModuleType:
    spec = spec_from_file_location("api", ROOT / "infra" / "release" / "api.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_change_that_breaks_callers_is_refused_until_it_is_announced(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = _api()
    assert api.main([], repository) == 0, "there is no release yet"
    assert "nothing to compare" in capsys.readouterr().out
    _run(["git", "tag", "v0.1.0"], repository)
    (repository / "streamkit" / "log" / "__init__.py").write_text("")
    assert api.main([], repository) == 0, "a private module may change"
    (repository / "streamkit" / "__init__.py").write_text("def connect(url: str, name: str) -> None: ...\n")
    assert api.main([], repository) == 1
    assert "connect" in capsys.readouterr().out
    changelog = repository / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]\n", "## [Unreleased]\n\n### Breaking\n"))
    assert api.main([], repository) == 0


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", "environment"], tmp_path)
    (site,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    record = next(file for file in distribution("msgspec").files or () if file.name == "METADATA")
    folder = Path(str(record.locate())).parent
    (site / folder.name).symlink_to(folder)
    program, found = str(Path(sys.executable).parent / "cyclonedx-py"), tmp_path / "sbom.json"
    made = [program, "environment", "--pyproject", "pyproject.toml", "-o", str(found), str(tmp_path / "environment")]
    _run(made, ROOT)
    bill = json.loads(found.read_text())
    assert bill["metadata"]["component"]["name"] == "streamkit-store"
    assert {component["name"] for component in bill["components"]} == {"msgspec"}
    assert "cyclonedx-py environment --pyproject pyproject.toml" in MAKEFILE


# -- workflows ------------------------------------------------------------------------------------------------------


def _steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_there_are_workflows_for_the_tests_the_site_and_the_release() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "docs.yml", "release.yml", "speed.yml"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_of_make_and_actions_that_are_pinned(workflow: Path) -> None:
    for step in _steps(workflow):
        assert ("run" in step) != ("uses" in step), step
        if "uses" in step:
            assert PINNED.fullmatch(step["uses"]), f"{step['uses']} is not pinned by its hash"
            continue
        for line in step["run"].splitlines():
            program, target, *variables = line.split()
            assert program == "make", f"{line}: a workflow runs nothing that a developer cannot run"
            assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), line
            assert all(f"$({variable.partition('=')[0]})" in MAKEFILE for variable in variables), line


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_permissions_and_no_secret(workflow: Path) -> None:
    text = workflow.read_text()
    found = yaml.safe_load(text)
    assert found["permissions"] == {"contents": "read"}
    for name, job in found["jobs"].items():
        assert set(job.get("permissions", {})) <= {"id-token", "pages"}, name
    assert "secrets." not in text
    assert "pull_request_target" not in text


def test_the_tests_run_on_every_python_and_betas_refuse_nothing() -> None:
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]["strategy"][
        "matrix"
    ]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert matrix["include"] == [{"python": "3.15", "beta": True}, {"python": "3.14t", "beta": True}]


def test_the_twin_has_wheels_for_linux_on_two_processors_and_for_macos_and_each_is_checked_on_its_own() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "speed.yml").read_text())
    wheels = workflow["jobs"]["wheels"]
    machines = {one["target"]: one["machine"] for one in wheels["strategy"]["matrix"]["include"]}
    assert machines == {
        "x86_64-unknown-linux-gnu": "ubuntu-latest",
        "x86_64-unknown-linux-musl": "ubuntu-latest",
        "aarch64-unknown-linux-gnu": "ubuntu-24.04-arm",
        "aarch64-unknown-linux-musl": "ubuntu-24.04-arm",
        "aarch64-apple-darwin": "macos-14",
    }
    steps = [step for step in wheels["steps"] if "run" in step]
    assert [step["run"] for step in steps] == [
        'make speed-wheel TARGET="$TARGET"',
        "make speed-check",
        "make speed-check-musl",
    ]
    assert steps[0]["env"] == {"TARGET": "${{ matrix.target }}"}
    assert [step["if"] for step in steps[1:]] == [
        "${{ !endsWith(matrix.target, '-musl') }}",
        "${{ endsWith(matrix.target, '-musl') }}",
    ]


def test_the_source_of_the_twin_is_released_if_the_oldest_rust_that_it_names_builds_it() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "speed.yml").read_text())
    oldest, check, source = [step for step in workflow["jobs"]["source"]["steps"] if "run" in step]
    version = tomllib.loads((ROOT / "speed" / "Cargo.toml").read_text())["package"]["rust-version"]
    assert (oldest["run"], oldest["env"]) == ("make speed-wheel", {"RUSTUP_TOOLCHAIN": version})
    assert check["run"] == "make speed-check"
    assert source["run"] == 'make speed-source TAG="$GITHUB_REF_NAME"'
    assert f"Rust {version} or newer" in (ROOT / "docs" / "speed.md").read_text()


@pytest.mark.parametrize(
    ("target", "linked"),
    [
        ("aarch64-unknown-linux-gnu", "--zig --compatibility manylinux2014 "),
        ("x86_64-unknown-linux-musl", "--zig --compatibility musllinux_1_2 "),
        ("aarch64-apple-darwin", ""),
    ],
)
def test_a_wheel_for_linux_also_serves_older_systems(target: str, linked: str) -> None:
    commands = _run(["make", "-n", "speed-wheel", f"TARGET={target}"], ROOT)
    assert f"--locked --manifest-path speed/Cargo.toml --target '{target}' {linked}" in " ".join(commands.split())
    assert ("ziglang==" in commands) == bool(linked)


@pytest.mark.parametrize("name", ["release.yml", "speed.yml"])
def test_a_release_is_published_by_trust_and_with_attestations(name: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    action = publish["steps"][-1]
    assert action["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert action["with"] == {"attestations": True}


def test_a_release_is_built_for_its_tag() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert 'make dist TAG="$GITHUB_REF_NAME"' in [step.get("run") for step in workflow["jobs"]["build"]["steps"]]


def test_a_release_with_a_tag_of_another_version_is_refused() -> None:
    check = re.search(r"sys\.exit\(0 if tag in .*", MAKEFILE)
    assert check is not None
    assert '"v" + streamkit.__version__' in check[0]
    assert (
        f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
        or "[Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
    )


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_an_issue_template_asks_for_what_is_needed(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= set(form)
    assert any(part.get("validations", {}).get("required") for part in form["body"])
