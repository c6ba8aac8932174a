"""A line that states a failure is read the same behind any prefix, quoted, in a box, wrapped, or among other text."""

from __future__ import annotations

import json
import random
import textwrap
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ncclforensics.frames.open_run import open_run
from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.meanings import ANSWERED
from ncclforensics.inputs.sources import find
from tests.budget import IS_FULL, sample
from tests.test_meanings import SHAPES, Sample, samples

Lines = list[str]
Alteration = Callable[[Lines], Lines]
Stated = set[tuple[str, str, str | None, int | None]]  # frame, form, host and pid

OTHER_TEXT = ["", "epoch 3: loss 1.93 acc 0.55", "", "", "saved the model", "Goodbye"]
MOST_UNREAD = 0.02  # of the altered lines: their words also begin a line of another kind
MOST_UNREAD_HERE = {
    # The first 60 columns may end before all words that make a line known.
    **dict.fromkeys(("cut at 60", "filled to 60"), 0.05),
    # Rows of tables, and what tools print on a terminal, stand behind no logger, and are not looked for there; and with
    # its rank in front, any exception is one of this rank, whatever else its words state.
    **dict.fromkeys(("list", "time in brackets", "time of a logger", "logger", "launcher with level"), 0.05),
    **dict.fromkeys(("grep -n", "grep in files", "rank"), 0.05),
}
# Of shapes for lines of any text, nothing shows where one begins or ends.
SAMPLES = sample([one for shape in SHAPES if shape.priority >= 0 for one in samples(shape)], 20)


def front(text: str) -> Alteration:
    return lambda lines: [text + line for line in lines]


def cut_at(width: int) -> Alteration:
    return lambda lines: [line[start : start + width] for line in lines for start in range(0, max(1, len(line)), width)]


def filled(width: int) -> Alteration:
    """Broken at blanks, as mails and editors do it."""
    return lambda lines: [
        part
        for line in lines
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]


def boxed(width: int, *, has_edges: bool = True) -> Alteration:
    """Within a box, as rich prints tracebacks."""

    def alter(lines: Lines) -> Lines:
        inside = [f"│ {line.ljust(width)} │" for line in cut_at(width)(lines)]
        edges = ["╭" + " Traceback ".center(width + 2, "─") + "╮", "╰" + "─" * (width + 2) + "╯"]
        return [edges[0], *inside, edges[1]] if has_edges else inside

    return alter


def in_records(lines: Lines) -> Lines:
    return [json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-03-02T11:04:57.123Z"}) for line in lines]


ALTERATIONS: Mapping[str, Alteration] = {
    **{f"cut at {width}": cut_at(width) for width in (60, 72, 80, 100, 120, 132, 160, 200, 240, 280, 400)},
    **{f"filled to {width}": filled(width) for width in (60, 76, 80, 100, 120, 160, 200, 280)},
    **{f"box of {width}": boxed(width) for width in (76, 96, 116, 400)},
    "sides of a box": boxed(400, has_edges=False),
    "quoted": front("> "),
    "quoted twice": front("> > "),
    "wrapped mail": lambda lines: front("> ")(filled(74)(lines)),
    "indented": front("    "),
    "tab": front("\t"),
    "list": front("- "),
    "ISO time": front("2026-03-02T11:04:57.123456Z "),
    "time in brackets": front("[2026-03-02 11:04:57] "),
    "time of a logger": front("2026-03-02 11:04:57,123 "),
    "logger": front("2026-03-02 11:04:57,123 - trainer - ERROR - "),
    "launcher with level": front("[2026-03-02 11:04:57,123] [ERROR] [launch.py:315:main] "),
    "rank": front("[rank3]: "),
    "host": front("gpu-a012: "),
    "kubectl": front("[pod/train-worker-3/pytorch] "),
    "container": front("2026-03-02T11:04:57.123456789Z stdout F "),
    "docker": in_records,
    "journald": front("Mar 02 11:04:57 gpu-a012 train.service[41887]: "),
    "mpirun": front("[1,0]<stderr>:"),
    "srun": front("3: "),
    "compose": front("train-1  | "),
    "ray": front("(WorkerActor pid=41887) "),
    "torchrun": front("[default3]:"),
    "grep -n": front("12:"),
    "grep in files": front("job.log:12:"),
    "newest first": lambda lines: lines[::-1],
    "text after it": lambda lines: [*lines, *OTHER_TEXT],
    "text before it": lambda lines: [*OTHER_TEXT, *lines],
    "blank lines": lambda lines: [text for line in lines for text in ("", line, "")],
    "CRLF": lambda lines: [f"{line}\r" for line in lines],
}
BREAKING = ("cut", "filled", "box", "sides", "wrapped")
ROUNDS_OF_ALL = [[name] * len(SAMPLES) for name in ALTERATIONS]


def drawn() -> list[str]:
    """An alteration for each example, so that over all examples each of them meets most grammars."""
    names = [*ALTERATIONS]
    return [names[zlib.crc32(example.text.encode()) % len(names)] for example in SAMPLES]


def altered(example: Sample, name: str) -> Lines:
    """The lines of a log of an example; what breaks lines leaves the one alone that makes its format known."""
    head, alter = [*filter(None, [example.head])], ALTERATIONS[name]
    if not name.startswith(BREAKING):
        return alter([*head, example.text])
    return [*(front("> ")(head) if name == "wrapped mail" else head), *alter([example.text])]


def stated(logs: Mapping[str, Lines], folder: Path) -> dict[str, Stated]:
    """What the lines of each log state, all logs read in one run."""
    folder.mkdir()
    for name, lines in logs.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    run = open_run(find([str(folder)]))
    run.read_until_decided()
    found: dict[str, Stated] = {name: set() for name in logs}
    names = dict(run["source"].select("source", "path").iter_rows())
    for row in run["stated_line"].iter_rows(named=True):
        found[Path(names[row["source"]]).name].add((row["frame"], row["form"], row["host"], row["pid"]))
    return found


def applies(alteration: str, example: Sample) -> bool:
    """PyTorch puts a rank in front of a line once only; a record of JSON that was broken is no line."""
    is_ranked = alteration == "rank" and example.text.lstrip().startswith("[rank")
    return not (is_ranked or (alteration.startswith(BREAKING) and example.text.startswith("{")))


@pytest.mark.parametrize("names", ROUNDS_OF_ALL if IS_FULL else [drawn()], ids=lambda names: names[0])
def test_an_altered_line_states_the_same(names: Lines, tmp_path: Path) -> None:
    chosen = {
        f"{number}.log": (name, example)
        for number, (name, example) in enumerate(zip(names, SAMPLES, strict=True))
        if applies(name, example)
    }

    found = stated({log: altered(example, name) for log, (name, example) in chosen.items()}, tmp_path / "logs")

    wrong = [
        f"{name}: {example.text}"
        for log, (name, example) in chosen.items()
        if (example.shape.frame, example.form) not in {fact[:2] for fact in found[log]}
    ]
    most = MOST_UNREAD_HERE.get(names[0], MOST_UNREAD) if IS_FULL else MOST_UNREAD
    by_chance = 0 if IS_FULL else 1  # of a draw, one more than the share
    assert len(wrong) <= most * len(chosen) + by_chance, "\n".join(wrong)


def test_lines_that_stand_together_by_chance_state_nothing(tmp_path: Path) -> None:
    facts = [
        text
        for shape in SHAPES
        for text in shape.examples
        if not any(m.kind in ANSWERED for m in grammar_file.load(shape.grammar).meanings[shape.frame].values())
    ]
    logs = {f"{seed}.log": random.Random(seed).sample(facts, len(facts)) for seed in range(20 if IS_FULL else 1)}

    assert stated(logs, tmp_path / "logs") == {name: set() for name in logs}


def test_a_common_word_behind_a_name_states_nothing(tmp_path: Path) -> None:
    logs = {"0.log": ["    State:          Terminated"], "1.log": ["gpu-a012: TERM_OWNER: job killed by owner."]}

    found = stated(logs, tmp_path / "logs")

    assert (found["0.log"], {fact[:2] for fact in found["1.log"]}) == (set(), {("job_end", "lsf_killed")})


def test_a_wrapped_line_is_not_taken_for_what_its_first_half_says(tmp_path: Path) -> None:
    lost = ["NVRM: The NVIDIA GPU 0000:41:00.0 (PCI ID: 10de:2330)", "installed in this system has fallen off the bus"]
    logs = {"0.log": lost, "1.log": ["gpu-a012: free(): invalid pointer"]}

    found = {log: {fact[:2] for fact in facts} for log, facts in stated(logs, tmp_path / "logs").items()}

    assert found == {"0.log": {("hardware_event", "lost")}, "1.log": {("crash", "heap")}}
