"""Rules and line shapes of a user's own: loaded from a folder or a package, tested, and kept apart from the program."""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from ncclforensics import analyze, cli
from ncclforensics.archive.cluster import read_apart
from ncclforensics.errors import Defect, UsageError
from ncclforensics.extensions.examples import example_problems
from ncclforensics.extensions.loading import load_folder, load_installed
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.sources import find
from tests.incidents import INCIDENTS, ROOT

pytestmark = pytest.mark.usefixtures("own_registries")
EXAMPLE = ROOT / "docs" / "example-rules"
DROPS = EXAMPLE / "incidents" / "a-switch-drops-packets" / "switchstat.txt"
RULE = "switch-drops-packets"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example package."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__")))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def configured(folder: Path) -> Path:
    """A configuration file that names a folder with rules."""
    file = folder / "site.toml"
    file.write_text(f'rule_folders = ["{EXAMPLE}"]\n', encoding="utf-8")
    return file


def test_the_example_package_passes_its_own_tests(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["test-rules", str(EXAMPLE)]) == cli.Exit.OK

    assert capsys.readouterr().out == "3 shapes, 4 examples, 1 rule, 2 incidents: all passed\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "lark",
            "DROPPED: INT",
            "DROPPED: INTEGER",
            "switchstat.lark, line 20: Terminal used but not defined: INTEGER",
        ),
        ("lark", "SIZE: INT", "SIZE: /[0-9]+(?=x)/", "switchstat.lark, line 12: /[0-9]+(?=x)/ uses flags, look-around"),
        ("lark", "switch_queue:", "rank:", "switchstat.lark, line 12: a frame is called rank already: ncclforensics."),
        ("lark", "%import .terminals", "empty:\n%import .terminals", "switchstat.lark: cannot become patterns"),
        ("py", "GRAMMARS = (", "raise SystemExit(0)\nGRAMMARS = (", "switchstat.py, line 13: SystemExit: 0"),
        ("py", 'KINDS = {"queue_head": "ib-counters"}', "KINDS = ()", "switchstat.py, line 15: KINDS is a dictionary"),
        ("py", '("queue_head",)', "7", "switchstat.py, line 14: SIGNATURES is a tuple of texts"),
        (
            "py",
            "(switch_queue:",
            "(switch_queues:",
            "line 18: the rule switch-drops-packets names a frame switch_queues",
        ),
        ("py", "KINDS = {", "KINDS = {{", "switchstat.py, line 15: '{' was never closed"),
        ("py", '"ib-counters"', '"queues"', "switchstat.py, line 15: queues is no kind of input"),
        ("py", '("switchstat",)', '("switches",)', "switchstat.py, line 13: there is no grammar switches"),
        ("py", "def switch_drops_packets", "def net_link_type_mix", "two rules are named net-link-type-mix"),
        ("py", "import polars as pl", "import pohlars as pl", "line 7: ModuleNotFoundError: No module named 'pohlars'"),
    ],
)
def test_what_cannot_be_loaded_is_named_with_file_and_line(
    file: str, old: str, new: str, message: str, example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(example / f"switchstat.{file}", old, new)

    assert cli.main(["test-rules", str(example)]) == cli.Exit.USAGE

    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "switchstat.lark",
            '": queue "',
            '":queue "',
            "switchstat.lark, line 12: the example is no line of switch_queue",
        ),
        ("switchstat.lark", "//> switchstat on", "// switchstat on", "line 8: no example above queue_head is a line"),
        ("switchstat.lark", '"port " PORT', '_SIGN "port " PORT', "switchstat.lark, line 12: the example is no line"),
        ("switchstat.py", "    Do: look", "    Look", "line 18: the docstring of switch-drops-packets lacks Do"),
        ("switchstat.py", '"dropped") > 0', '"dropped") >= 0', "case.json: congestion must not be reported, and is"),
        ("switchstat.py", '"dropped") > 0', '"dropped") > 9999', "no incident that expects congestion shows the rule"),
        ("incidents/queues-that-drop-nothing/case.json", '["congestion"]', "[]", "no incident forbids congestion"),
        ("incidents/queues-that-drop-nothing/case.json", '"origin"', '"orgin"', "has an unknown key orgin"),
    ],
)
def test_what_fails_its_examples_or_incidents_is_a_problem(
    file: str, old: str, new: str, message: str, example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "_SIGN" in new:
        edit(example / "switchstat.lark", "SIZE: INT", 'SIZE: INT\n_SIGN: "* "')
    edit(example / file, old, new)

    assert cli.main(["test-rules", str(example)]) == cli.Exit.FINDINGS

    assert message in capsys.readouterr().out


def test_a_shape_that_takes_the_lines_of_another_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "greedy.lark").write_text(
        "%import .terminals (TEXT)\n%import .prefix (_info)\n\n"
        "//> node001:1:1 [0] NCCL INFO Connected all rings\n//! fact\n"
        'greedy_line: _info "Connected all " WHAT\n\nWHAT: TEXT\n'
    )
    (tmp_path / "greedy.py").write_text('GRAMMARS = ("greedy",)\nSIGNATURES = ()\nKINDS = {}\n')
    problems = list(example_problems(load_folder(tmp_path)))

    assert any("greedy_line also matches a line of milestone" in problem for problem in problems), problems


def test_a_rule_of_ones_own_finds_what_it_is_for_and_can_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(configured(tmp_path))]

    assert cli.main(["check", str(DROPS), "--format", "json", *config]) == cli.Exit.FINDINGS
    report = json.loads(capsys.readouterr().out)
    assert [(finding["rule"], finding["hosts"]) for finding in report["findings"]] == [(RULE, ["gpu-a012"])]
    assert report["inputs"][0]["kind"] == "ib-counters"
    assert report["configuration"] == {"files": [config[1]], "rule_folders": [str(EXAMPLE)]}

    assert cli.main(["explain", RULE, *config]) == cli.Exit.OK
    assert "A port of a switch dropped packets" in capsys.readouterr().out

    assert cli.main(["check", str(DROPS), "-q", "--ignore", RULE, *config]) != cli.Exit.FINDINGS


def test_what_a_terminal_would_interpret_is_escaped_in_a_finding_of_ones_own(
    example: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    edit(example / "switchstat.py", 'title=f"', 'title=f"\\x1b[31m')
    (tmp_path / "site.toml").write_text('rule_folders = ["example"]\n')

    cli.main(["check", str(DROPS), "-q", "--config", str(tmp_path / "site.toml")])

    output = capsys.readouterr()
    assert "the switch dropped" in output.out
    assert "\x1b" not in output.out + output.err


def test_a_saved_run_keeps_the_rows_of_ones_own_shapes(tmp_path: Path) -> None:
    config, saved = ["--config", str(configured(tmp_path))], str(tmp_path / "run.ncclf")

    assert cli.main(["save", str(DROPS), "-o", saved, "-q", *config]) == cli.Exit.OK

    assert [finding.rule for finding in analyze(saved, everything=True).findings] == [RULE]


def test_workers_of_a_cluster_know_ones_own_shapes() -> None:
    load_folder(EXAMPLE)
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        sources = read_apart(find([str(DROPS)]), executor, threads=1)

    assert open_run(sources)["switch_queue"].height == 3


def test_names_of_hosts_in_ones_own_shapes_are_redacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check", str(DROPS), "--redact", "--format", "json", "--config", str(configured(tmp_path))])

    out = capsys.readouterr().out
    assert "gpu-a012" not in out
    assert RULE in out


@pytest.mark.parametrize(
    ("old", "new", "failure"),
    [
        ('pl.col("dropped") > 0', 'pl.col("drops") > 0', "switchstat.py, line 27: the rule {} failed (ColumnNotFoundE"),
        ("    dropping =", "    raise SystemExit(0)\n    dropping =", "line 27: the rule {} failed (SystemExit: 0)"),
        ('certainty="certain"', 'certainty="sure"', "the rule {} failed (ValueError: sure is no certainty"),
        ("hosts=[port", 'ranks=["one"], hosts=[port', "the rule {} failed (TypeError"),
        ("hosts=[port", "ranks=[16], hosts=[port", "the rule {} failed (ValueError: it names rank 16 of 16)"),
        ("hosts=[port", "ranks=[-1], hosts=[port", "the rule {} failed (ValueError: -1 is no rank)"),
        ("hosts=[port", "job=7, hosts=[port", "the rule {} failed (ValueError: it describes the verdict of job 7"),
        (
            'source=port["source"]), "drops")',
            'source=port["source"]).with_columns(source=99), "drops")',
            "the rule {} failed (ValueError: it cites line 3 of source 99, and",
        ),
        ("yield Finding(", "yield dict(", "the rule {} failed (TypeError: a rule yields findings, not dict)"),
    ],
)
def test_a_rule_that_crashes_costs_only_itself(
    old: str,
    new: str,
    failure: str,
    example: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(Defect, "of", DEFECT_OF)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    edit(example / "switchstat.py", old, new)
    (tmp_path / "site.toml").write_text('rule_folders = ["example"]\n')
    paths = [str(DROPS), str(INCIDENTS / "one-rank-stops-before-an-allreduce")]

    cli.main(["check", *paths, "--format", "json", "-q", "--config", str(tmp_path / "site.toml")])

    shown = capsys.readouterr()
    assert "lagging-rank" in {finding["category"] for finding in json.loads(shown.out)["findings"]}
    assert failure.format(RULE) in shown.err
    assert f"{example}/switchstat.py, line" in shown.err
    assert "a defect of your own rules" in shown.err
    assert "Please report" not in shown.err


DEFECT_OF = Defect.of  # before a fixture lets every defect end its test


def test_a_shape_without_signatures_is_looked_for_among_nccls_lines(tmp_path: Path) -> None:
    (tmp_path / "acme.lark").write_text(
        "%import .terminals (NUMBER)\n%import .prefix (_info)\n\n"
        "//> node001:1:1 [0] NCCL INFO NET/Acme: rail 3 paused\n//! fact\n"
        'acme_pause: _info "NET/Acme: rail " RAIL " paused"\n\n'
        "RAIL: NUMBER\n"
    )
    (tmp_path / "acme.py").write_text('GRAMMARS = ("acme",)\nSIGNATURES = ()\nKINDS = {}\n')
    log = tmp_path / "job.log"
    log.write_text("node001:7:8 [0] NCCL INFO NET/Acme: rail 5 paused\n")

    load_folder(tmp_path)

    assert analyze(log).frames["acme_pause"].select("pid", "rail").rows() == [(7, 5)]


def test_a_document_of_ones_own_has_rows_like_the_printed_form(example: Path) -> None:
    (example / "switchstat_json.py").write_text(
        'import json\nGRAMMARS = ()\nSIGNATURES = ()\nKINDS = {"switch_queue": "ib-counters"}\n'
        "MAGIC, MARKER = b'{', b'\"switchstat\"'\n\n\n"
        "def records(data):\n"
        '    return [("switch_queue", port) for port in json.loads(data)["switchstat"]], []\n'
    )
    port = {"port": 17, "host": "gpu-a012", "device": "mlx5_4", "filled": 9216, "size": 9216, "dropped": 7}
    (example / "queues.json").write_text(json.dumps({"switchstat": [port]}))

    load_folder(example)

    assert [finding.rule for finding in analyze(example / "queues.json", everything=True).findings] == [RULE]


def test_an_installed_package_adds_its_rules_by_its_entry_point(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    (site / "acme_rules-1.0.dist-info").mkdir(parents=True)
    (site / "acme_rules-1.0.dist-info" / "METADATA").write_text("Name: acme-rules\nVersion: 1.0\n")
    (site / "acme_rules-1.0.dist-info" / "entry_points.txt").write_text("[ncclforensics]\nacme = acme_rules\n")
    example.rename(site / "acme_rules")
    (site / "acme_rules" / "__init__.py").write_text("from . import switchstat\n")
    monkeypatch.syspath_prepend(str(site))

    (extension,) = load_installed()

    assert [rule.name for rule in extension.rules] == [RULE]
    assert "acme_rules.switchstat" in sys.modules


def test_a_file_found_beside_logs_never_loads_code(
    example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = example / "was-executed"
    (example / "trap.py").write_text(f"open({str(proof)!r}, 'w').close()\n")
    (example / "ncclforensics.toml").write_text('rule_folders = ["."]\n')
    (example / "incidents" / "job").mkdir()
    monkeypatch.chdir(example / "incidents" / "job")

    cli.main(["check", str(DROPS), "-q"])

    assert not proof.exists()
    assert "ncclforensics.toml: rule_folders is ignored" in capsys.readouterr().err


def test_the_users_own_file_loads_code_from_wherever_it_is_found(
    example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = example.rename(example.parent / "ncclforensics")
    (folder / "ncclforensics.toml").write_text('rule_folders = ["."]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))

    for current in (folder, folder.parent):
        monkeypatch.chdir(current)
        assert cli.main(["explain", RULE]) == cli.Exit.OK
    assert capsys.readouterr().err == ""


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="/nowhere: is not a folder with rules"):
        load_folder(tmp_path / "nowhere")
