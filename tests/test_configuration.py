"""The configuration of a site: where it is found, what it refuses, and what each key changes."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze, cli
from ncclforensics.capture import request
from ncclforensics.data.settings import ExpectedMachine, Settings, Thresholds
from ncclforensics.mcp import answers
from ncclforensics.mcp.runs import Runs
from ncclforensics.report.redacted_run import redact_report
from ncclforensics.rules.finding import Severity
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Plan
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.tui.content.incident import build_incident
from tests.budget import drawn
from tests.incidents import INCIDENTS, ROOT, Incident

BENCHMARK = "a-healthy-benchmark"
HEALTHY = "a-healthy-run"


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "ncclforensics.toml"
    file.write_text(text, encoding="utf-8")
    return file


def logs(name: str) -> list[str]:
    incident = Incident(INCIDENTS / name)
    return [str(incident.folder / log) for log in incident.logs]


def rules_of(name: str, settings: Settings) -> set[str]:
    return {finding.rule for finding in analyze(logs(name), everything=True, settings=settings).findings}


@pytest.fixture
def report_of(capsys: pytest.CaptureFixture[str]) -> Any:
    """`report_of(*arguments)`: the JSON report of `check` on a healthy benchmark, and what stands on stderr."""

    def check(*arguments: str) -> tuple[dict[str, Any], str]:
        cli.main(["check", *logs(BENCHMARK), "--format", "json", *arguments])
        shown = capsys.readouterr()
        return json.loads(shown.out), shown.err

    return check


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's own configuration file; the current folder is an empty one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work" / "logs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "logs")
    return tmp_path / "config" / "ncclforensics"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ignor = ['hang']", "site.toml: unknown key ignor; perhaps ignore is meant"),
        ("[machine]\nnic = 8", "site.toml: machine: unknown key nic; perhaps nics is meant"),
        ("colour = 'red'", "site.toml: unknown key colour; there are paths, rule_folders, select, ignore"),
        ("files = ['x']", "site.toml: unknown key files"),
        ("ignore = 'hang'", "site.toml: ignore is a list of texts"),
        ("machine = 8", "site.toml: machine is a table: [machine]"),
        ("racks = ['r07']", "site.toml: racks is a table: [racks]"),
        ("[racks]\nr07 = 'gpu-a*'", "site.toml: racks: r07 is a list of texts"),
        ("[rail]\nr1 = ['mlx5_0']", "site.toml: unknown key rail; perhaps rails is meant"),
        ("[machine]\nnics = 7.5", "site.toml: machine: nics is a whole number above 0"),
        ("[machine]\nbusbw = true", "site.toml: machine: busbw is a number above 0"),
        ("[thresholds]\nlate_seconds = 0", "site.toml: thresholds: late_seconds is a number above 0"),
        ("[thresholds]\nlate_seconds = nan", "site.toml: thresholds: late_seconds is a number above 0"),
        ("ignore = [", "site.toml: Invalid value"),
        (f"ignore = {'[' * 5000}{']' * 5000}", "site.toml: is nested too deeply"),
        ("#" * (2 << 20), "site.toml: is larger than 1 MiB"),
        (r'paths = ["\u0000"]', "site.toml: paths is a list of texts"),
        ("paths = ['~no-such-user/logs']", "~no-such-user/logs: Could not determine home directory"),
        (
            "ignore = ['gdr-mising']",
            "site.toml: select or ignore: gdr-mising: neither a rule nor a category; perhaps gdr-missing is meant",
        ),
    ],
)
def test_what_a_file_may_not_hold_is_refused_by_file_and_key(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.toml").write_text(text)

    assert cli.main(["check", *logs(BENCHMARK), "--config", str(tmp_path / "site.toml")]) == cli.Exit.USAGE

    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hang", *logs(HEALTHY), "--config", "/nowhere.toml"]) == cli.Exit.USAGE

    assert "/nowhere.toml No such file" in capsys.readouterr().err


def test_the_nearest_file_replaces_keys_of_the_users_own(user: Path, report_of: Any) -> None:
    own = write(user, "[machine]\ngpus = 8\nbusbw = 2000\n[thresholds]\nlate_seconds = 3\n")
    near = write(user.parents[1] / "work", "[machine]\nbusbw = 3000\n")
    write(user.parents[1], "this file is farther away, and is not read")

    report, shown = report_of()

    assert report["configuration"]["files"] == [str(own), str(near)]
    (finding,) = report["findings"]
    assert "the site's configuration expects 3000 GB/s" in finding["detail"]
    assert f"settings of {near} hold: machine" in shown


def test_a_given_file_replaces_all_others(user: Path, report_of: Any) -> None:
    write(user, "[machine]\nbusbw = 2000\n")
    write(Path.cwd(), "[machine]\nbusbw = 3000\n")

    report, shown = report_of("--config", "/dev/null")

    assert report["findings"] == []
    assert (report["configuration"]["files"], shown) == ([], "")


def test_the_report_names_the_files_that_acted_with_v(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = write(user, "ignore = ['hang']\n")

    cli.main(["check", *logs(BENCHMARK), "-v"])
    assert f"configuration{own}" in "".join(capsys.readouterr().out.split())

    cli.main(["check", *logs(BENCHMARK)])
    assert "configuration" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "options", "is_found"),
    [
        ("", [], True),
        ("ignore = ['benchmark-slow']", [], False),
        ("ignore = ['bench-expected-table']", [], False),
        ("select = ['gdr-missing']", [], False),
        ("select = ['gdr-missing']", ["--select", "benchmark-slow"], True),
        ("ignore = ['benchmark-slow']", ["--ignore", "gdr-missing"], True),
    ],
)
def test_select_and_ignore_are_those_of_the_options(
    text: str, options: list[str], is_found: bool, user: Path, report_of: Any
) -> None:
    write(user, f"{text}\n[machine]\nbusbw = 2000\n")

    report, _ = report_of(*options)

    assert ("bench-expected-table" in {finding["rule"] for finding in report["findings"]}) is is_found


def test_a_verdict_does_not_depend_on_ignored_rules(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(user, "ignore = ['lagging-rank', 'coll-lagging-ranks']\n")

    assert cli.main(["hang", *logs("one-rank-stops-before-an-allreduce")]) == cli.Exit.FINDINGS


def test_a_command_without_a_path_reads_those_of_the_site(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--format", "json"]) == cli.Exit.USAGE
    assert (
        "Error: Invalid value for '[PATH]…': give one, or set `paths` in ncclforensics.toml" in capsys.readouterr().err
    )

    file = write(user, "paths = ['logs/*.txt']\n")
    (user / "logs").mkdir()
    (user / "logs" / "test.txt").write_bytes(Path(logs(BENCHMARK)[0]).read_bytes())
    for config in ([], ["--config", str(file)]):
        assert cli.main(["check", "--format", "json", *config]) == cli.Exit.OK
        assert [given["path"] for given in json.loads(capsys.readouterr().out)["inputs"]] == [
            str(user / "logs" / "test.txt")
        ]


def test_agents_get_the_answers_of_the_site() -> None:
    settings = Settings(machine=ExpectedMachine(busbw=900.0))

    report = Runs([INCIDENTS], settings).report(logs(BENCHMARK), everything=True)

    assert report.run.settings is settings
    assert "bench-expected-table" in {finding.rule for finding in report.findings}


def test_screens_and_agents_name_the_files_that_acted() -> None:
    report = analyze(logs(BENCHMARK), everything=True, settings=Settings(files=("/site/ncclforensics.toml",)))
    with_default = analyze(logs(BENCHMARK), everything=True)

    assert answers.verdict(report)["configuration"]["files"] == ["/site/ncclforensics.toml"]
    assert answers.findings(report, None, Severity.INFO, 0)["configuration"]["files"] == ["/site/ncclforensics.toml"]
    assert build_incident(report, Citer(report)).nodes[-1].title == "configuration /site/ncclforensics.toml"
    assert "configuration" not in build_incident(with_default, Citer(with_default)).nodes[-1].title


def test_a_capture_is_judged_by_the_given_file(
    user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = write(user / "site", "colour = 'red'")
    monkeypatch.setattr(request, "build_plan", lambda *_: pytest.fail("ran"))

    assert cli.main(["capture", "--print", "slurm", "--config", str(site)]) == cli.Exit.OK
    assert f"--config={site}" in capsys.readouterr().out


def test_words_of_the_site_are_redacted(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Path("job.log")
    log.write_text(
        "node001:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nnode001:1:1 [0] x.cc:1 NCCL WARN orion failed\n"
    )
    write(user, "redact_words = ['orion']\n")

    cli.main(["check", str(log), "--redact", "--format", "json"])

    out = capsys.readouterr().out
    assert "orion" not in out
    assert "[removed] failed" in out


@pytest.mark.parametrize(
    ("name", "rule", "settings"),
    [
        (HEALTHY, "chan-undercount", Settings(machine=ExpectedMachine(gpus=8, channels=25))),
        ("a-rank-is-killed", "chan-undercount", Settings(machine=ExpectedMachine(gpus=8, channels_between_hosts=4))),
        ("a-port-goes-down", "net-fewer-nics-than-node-has", Settings(machine=ExpectedMachine(nics=3))),
        (BENCHMARK, "bench-expected-table", Settings(machine=ExpectedMachine(busbw=900.0))),
    ],
)
def test_less_than_the_site_expects_is_found(name: str, rule: str, settings: Settings) -> None:
    assert rule in rules_of(name, settings)
    assert rule not in rules_of(name, Settings())


@pytest.mark.parametrize(
    ("name", "rule", "settings"),
    [
        (HEALTHY, "chan-undercount", Settings(machine=ExpectedMachine(gpus=8, channels=24))),
        (HEALTHY, "chan-undercount", Settings(machine=ExpectedMachine(gpus=8, channels_between_hosts=25))),
        (HEALTHY, "chan-undercount", Settings(machine=ExpectedMachine(gpus=16, channels=25))),
        (BENCHMARK, "bench-expected-table", Settings(machine=ExpectedMachine(gpus=4, busbw=900.0))),
        ("one-host-uses-fewer-nics", "net-fewer-nics-than-node-has", Settings(machine=ExpectedMachine(nics=1))),
        ("eight-gpus-on-nvswitch-with-two-channels", "chan-undercount", Settings(machine=ExpectedMachine(channels=2))),
        ("one-host-below-the-expected-busbw", "bench-expected-table", Settings(machine=ExpectedMachine(busbw=100.0))),
        ("a-straggler-that-always-arrives", "slow-rank-comes-late", Settings(thresholds=Thresholds(late_seconds=5.0))),
    ],
)
def test_what_the_site_expects_is_no_finding(name: str, rule: str, settings: Settings) -> None:
    assert rule not in rules_of(name, settings)


def test_a_machine_that_the_program_does_not_know_is_judged_by_the_site(tmp_path: Path) -> None:
    for log in logs(BENCHMARK):
        text = Path(log).read_text(encoding="utf-8").replace("NVIDIA H100 80GB HBM3", "NVIDIA XYZ 9000")
        (tmp_path / Path(log).name).write_text(text, encoding="utf-8")
    expected = Settings(machine=ExpectedMachine(gpus=8, busbw=900.0))

    rules = [
        {finding.rule for finding in analyze(tmp_path, everything=True, settings=settings).findings}
        for settings in (Settings(), expected)
    ]

    assert rules == [{"bench-not-judged"}, {"bench-expected-table"}]


def test_the_site_says_how_long_init_may_take() -> None:
    patient = Settings(thresholds=Thresholds(long_init_seconds=1000.0))

    severities = [
        {
            str(finding.severity)
            for finding in analyze(logs("one-rank-is-started-late"), everything=True, settings=settings).findings
            if finding.rule == "boot-slow-init"
        }
        for settings in (Settings(), patient)
    ]

    assert severities == [{"warning"}, {"info"}]


def test_the_documentation_names_every_key_and_no_other() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    tables = {"machine": ExpectedMachine, "thresholds": Thresholds}
    flat = [name for name in Settings._fields if name not in ("files", *tables)]
    keys = flat + [f"{name}.{key}" for name, kind in tables.items() for key in kind._fields]

    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")] == [
        *(
            key
            for key in ("paths", "select", "ignore", "rule_folders", "redact_words", "hosts", "racks", "rails")
            if key in keys
        ),
        *(key for key in keys if "." in key),
    ]


LOST_SWITCH = ("the-switch-of-one-rail-fails", "cascade-edge-clustering")
LOST_PORT = ("a-port-goes-down", "ib-port-event")


@pytest.mark.parametrize(
    ("case", "rails", "text"),
    [
        (LOST_SWITCH, {"plane-b": ("mlx5_1",)}, "all 3 NICs are on rail plane-b"),
        (LOST_PORT, {"left": ("node-a/*",), "right": ("MLX5_0:1",)}, "mlx5_0 of node-b is on rail right"),
        (LOST_SWITCH, {"all": ("mlx5_*",)}, None),
        (LOST_SWITCH, {"other": ("mlx5_0",)}, None),
        (("roce-loses-packets-on-all-hosts", "ctr-roce-loss"), {"r0": ("mlx5_0",), "r1": ("mlx5_1",)}, None),
        (("the-kernel-sees-a-link-go-down", "kernel-link-event"), {"r0": ("node-a/mlx5_0",)}, None),
    ],
)
def test_nics_of_one_rail_are_said_to_be_on_it(
    case: tuple[str, str], rails: dict[str, tuple[str, ...]], text: str | None
) -> None:
    name, rule = case
    findings = analyze(logs(name), everything=True, settings=Settings(rails=rails)).findings

    details = [finding.detail for finding in findings if finding.rule == rule]
    assert details
    assert [detail.rpartition("; ")[2] for detail in details if " on rail " in detail] == ([text] if text else [])


def test_a_rail_is_redacted() -> None:
    report = analyze(logs("a-port-goes-down"), everything=True, settings=Settings(rails={"orion-2": ("node-b/*",)}))

    redacted, _ = redact_report(report, None)

    details = " ".join(finding.detail for finding in redacted.findings)
    assert "on rail rail-01" in details
    assert "orion" not in details


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ({"rack7-node3": ("gpu-?002", "gpu-?001")}, "gpu-?001 is rack7-node3"),
        ({"rack7-node3": ("gpu-?003",)}, None),  # of no host that the finding names
    ],
)
def test_a_machine_is_named_by_its_name_at_the_site(
    hosts: dict[str, tuple[str, ...]], text: str | None, tmp_path: Path
) -> None:
    generate(Plan(nodes=4, gpus_per_node=1, tp=1, layers=1, steps=1, fault=Fault(FaultKind.LAGGING, (1,))), tmp_path)

    report = analyze(tmp_path, settings=Settings(hosts=hosts))
    redacted, _ = redact_report(report, None)

    found = [part for part in report.findings[0].detail.split("; ") if " is rack7" in part]
    assert [fnmatch(part, text or "") for part in found] == ([True] if text else [])
    assert "rack7" not in redacted.findings[0].detail


def rack_text(hosts_at_fault: tuple[int, ...], folder: Path, racks: dict[str, tuple[str, ...]], **options: Any) -> str:
    culprits = tuple(2 * host + gpu for host in hosts_at_fault for gpu in range(2))
    plan = Plan(
        nodes=4, gpus_per_node=2, tp=2, version="2.27.7", layers=1, steps=1, fault=Fault(FaultKind.LAGGING, culprits)
    )
    if not folder.exists():
        generate(plan, folder)
    report = analyze(folder, settings=Settings(racks=racks))
    if options.get("is_redacted"):
        report, _ = redact_report(report, None)
    return report.findings[0].detail.rpartition("; ")[2]


def test_hosts_of_one_rack_are_said_to_share_it(tmp_path: Path) -> None:
    """The hosts of the job are gpu-?000 to gpu-?003."""
    logs, in_one = tmp_path / "two-hosts", {"r07": ("GPU-*001.example.org", "gpu-?00[12]"), "r08": ("*",)}

    assert rack_text((1, 2), logs, in_one) == "both hosts stand in rack r07, and no other host of this run does"
    assert rack_text((1, 2), logs, in_one, is_redacted=True).startswith("both hosts stand in rack rack-01,")
    assert rack_text((1, 2), logs, {"r7": ("*[0-2]",)}) == "both hosts stand in rack r7, with 1 other host of this run"
    for no_news in drawn([{}, {"r07": ("*",)}, {"r07": ("*1",), "r08": ("*2",)}, {"r07": ("*1",)}], 2):
        assert "rack" not in rack_text((1, 2), logs, no_news)
    assert rack_text((3,), tmp_path / "one-host", {"r09": ("*3",)}).endswith("003 stands in rack r09")
