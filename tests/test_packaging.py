"""What people install: the wheel holds the grammars and the demo, and works where there is no repository."""

from __future__ import annotations

import filecmp
import os
import re
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.distributions import BUILD, tried

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (built,) = distributions.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a clean environment: the wheel, and beside it the libraries that are here already."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder)
    programs, libraries = (
        Path(sysconfig.get_path(kind, "venv", {"base": str(folder)})) for kind in ("scripts", "purelib")
    )
    # Where the repository itself is installed, a `.pth` in the folder of the libraries says so: it is not followed.
    (libraries / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet"]
    done = tried([*pip, "--no-deps", "--no-index", "--no-compile", "--ignore-installed", wheel], folder)
    assert done.returncode == 0, done.stderr
    return programs


def test_the_wheel_holds_every_grammar(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())

    assert {f"ncclforensics/grammars/{path.name}" for path in (ROOT / "grammars").glob("*.lark")} <= packed


def test_the_wheel_holds_the_page_of_a_postmortem(wheel: Path) -> None:
    wanted = {f"ncclforensics/views/templates/postmortem.{suffix}" for suffix in ("css", "html.j2")}

    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_only_the_package(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"ncclforensics"}


def test_the_wheel_names_its_program_and_its_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))

    assert "ncclforensics = ncclforensics.cli:run" in archive.read(entry_points).decode()
    assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())


def test_the_licence_of_every_library_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [
        *project["dependencies"],
        *(line for lines in project["optional-dependencies"].values() for line in lines),
    ]
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in required} - {"ncclforensics"}
    licences = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").partition("## Licences")[2]

    assert {name for name in names if not re.search(rf"[ |]{name}[,; ]", licences)} == set()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_same_source_builds_the_same_bytes(distributions: Path, tmp_path: Path) -> None:
    """Once from the repository, once from the source that this wrote, in another folder and of another time."""
    again, source = tmp_path / "again", tmp_path / "source"
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        archive.extractall(source, filter="data")
    (unpacked,) = source.iterdir()
    for path in unpacked.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert tried([*BUILD, again], unpacked).returncode == 0

    names = sorted(path.name for path in distributions.iterdir())
    assert [name.rpartition(".")[2] for name in names] == ["whl", "gz"]
    assert filecmp.cmpfiles(distributions, again, names, shallow=False) == (names, [], [])


def test_a_line_is_parsed_with_the_installed_grammars(installed: Path, tmp_path: Path) -> None:
    code = (
        "from ncclforensics.grammar import folders; from ncclforensics.formats.nccl import dialect; "
        "print(folders.GRAMMARS, len(dialect().shapes))"
    )

    said = tried([installed / "python", "-c", code], tmp_path)

    assert said.stderr == ""
    folder, shapes = said.stdout.split()
    assert Path(folder).is_relative_to(installed.parent)
    assert int(shapes) > 10


def test_the_installed_demo_finds_the_culprit_and_compiles_no_grammar(installed: Path, tmp_path: Path) -> None:
    said = tried([installed / "ncclforensics", "demo"], tmp_path, XDG_CACHE_HOME=str(tmp_path))

    assert said.returncode == 1, said.stderr
    assert re.search(r"rank \d+", said.stdout)
    kept = {path.name.partition("-")[0] for path in (tmp_path / "ncclforensics").iterdir()}
    # By the times of the installed files.
    assert kept == {"ncclforensics.analyses", "ncclforensics.grammars", "ncclforensics.rules"}


def test_the_installed_program_prints_its_version(installed: Path, tmp_path: Path) -> None:
    said = tried([installed / "ncclforensics", "--version"], tmp_path)

    assert said.stdout.splitlines()[0] == "ncclforensics 0.1.0"
