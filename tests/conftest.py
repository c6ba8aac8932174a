"""What all tests share: golden files, the corpus beside the repository, a terminal that is always the same."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ncclforensics import analyze, formats
from ncclforensics.errors import Defect
from ncclforensics.extensions import loading
from ncclforensics.frames import registry as analyses
from ncclforensics.grammar import folders, grammar_file
from ncclforensics.parsing.concurrency import single_threaded
from ncclforensics.report.build import Report
from ncclforensics.rules import registry as rules
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from tests import budget, incidents
from tests.distributions import BUILD, tried
from tests.real_logs import CORPUS
from tests.source import PACKAGE

# The time an example takes is the machine's affair; the same ones are drawn every time, so that a run can be repeated.
settings.register_profile(
    "suite", max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update", action="store_true", help="rewrite everything that is generated, in place of comparing"
    )


class _DoctestsAlone:
    """Modules of the package are collected for their examples: those without any need not be imported for that."""

    @pytest.hookimpl
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix == ".py" and PACKAGE in collection_path.parents:
            return None if ">>> " in collection_path.read_text(encoding="utf-8") else True
        return None


def pytest_configure(config: pytest.Config) -> None:
    """Let all workers begin with an empty cache, so that nothing of an earlier run is used; not in a quick run."""
    config.pluginmanager.register(_DoctestsAlone())
    if hasattr(config, "workerinput") or budget.IS_QUICK:
        return
    cache = tempfile.TemporaryDirectory(prefix="ncclforensics-cache-")
    os.environ["XDG_CACHE_HOME"] = cache.name
    config.add_cleanup(cache.cleanup)


def pytest_collection() -> None:
    """Collect tests without the garbage collector, which would look through all modules and tests again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let it look seldom afterwards: what tests keep for others is no garbage."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores: tests of screens, clocks and commands wait much of their time."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests that share a cached result on one worker, and mark those that `make quick` leaves out.

    Other tests stay with their module, whose helpers keep what they computed: that saves 7 % of the processors' time.

    `make test` leaves out tests with the mark `nightly`, and tries one in so many cases of the others: by how many they
    are, and fewer where their mark `one_in(n)` says so. What is generated is rewritten for all cases.
    """
    is_whole = budget.IS_FULL or config.getoption("--update")
    left_out = set() if is_whole else {*map(id, items)} - {*map(id, _drawn(items))}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]
    quick = {incident.name for incident in incidents.one_of_each_kind()}
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        for kind in {"incident", "pair"} & set(params):
            item.add_marker(pytest.mark.xdist_group(params[kind].name))
        if "incident" in params and params["incident"].name not in quick:
            item.add_marker(pytest.mark.slow)
        if "shape" in params:
            item.add_marker(pytest.mark.xdist_group(params["shape"].grammar))
        for fixture in {"large", "distributions"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.xdist_group(fixture))
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run each test with Polars on one thread: its frames are small, and two workers share the cores already."""
    test = pyfuncitem.obj
    pyfuncitem.obj = lambda **arguments: single_threaded(partial(test, **arguments))
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def _drawn(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases that are tried: at least one of each test that is not left to `make nightly`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("nightly") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_test in cases.values():
        mark = of_test[0].get_closest_marker("one_in")
        writes_logs = "tmp_path" in getattr(of_test[0], "fixturenames", ())
        usual = budget.share_of(len(of_test), writes_logs=writes_logs)
        yield from budget.drawn(of_test, max(usual, mark.args[0]) if mark else usual)


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def _no_configuration_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test load rules and shapes of its own, and forget them at its end."""
    rules.all_rules()
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    monkeypatch.setattr(analyses, "_ANALYSES", dict(analyses._ANALYSES))
    monkeypatch.setattr(folders, "_FOLDERS", list(folders._FOLDERS))
    monkeypatch.setattr(formats, "_ADDED", {})
    monkeypatch.setattr(loading, "_LOADED", {})
    yield
    for cached in (formats.all_formats, formats._other_than_lines, formats.dialect, formats._fills, grammar_file.load):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def _no_part_of_the_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(part: str, error: BaseException, *, is_of_input: bool = False, own_place: str = "") -> Defect:
        raise error

    monkeypatch.setattr(Defect, "of", failed)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Report]:
    """`alone(*lines)`: the report on a log of nothing but these lines, read once for all tests."""

    @cache
    def report(*lines: str) -> Report:
        log = tmp_path_factory.mktemp("alone") / "job.log"
        log.write_text("".join(f"{line}\n" for line in lines))
        return analyze(str(log), everything=True)

    return report


@pytest.fixture
def shared_analyses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands, agents and the test itself judge the same fixtures once for all tests."""
    for place in ("ncclforensics.cli.analysis", "ncclforensics.mcp.runs", request.module.__name__):
        monkeypatch.setattr(f"{place}.analyze", incidents.analyzed, raising=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)`: the file holds exactly this text; `pytest --update` writes it."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        wanted = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == wanted, f"{path} differs; if that is meant: pytest --update, then read git diff"

    return compare


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """512 ranks on 64 hosts, two of which stop."""
    folder = tmp_path_factory.mktemp("large")
    fault = Fault(FaultKind.LAGGING, (137, 400), "tp", None)
    generate(Plan(nodes=64, tp=8, layers=1, steps=1, channels=1, finish=Finish.KILLED, fault=fault), folder)
    return analyze([str(folder)])


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel; in a full run with the source distribution, too, which the wheel is then built from."""
    folder = tmp_path_factory.mktemp("dist")
    done = tried([*BUILD, folder, *(() if budget.IS_FULL else ("--wheel",))], incidents.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Logs of the real world, where they lie beside the repository."""
    if not CORPUS.is_dir():
        pytest.skip(f"{CORPUS} is not on this machine")
    return CORPUS
