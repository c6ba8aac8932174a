"""Names of every kind, planted in every field of every format, and looked for in everything that leaves the house."""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from contextlib import chdir
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.archive.write import save
from ncclforensics.diff.compare import compare_reports
from ncclforensics.formats import all_formats
from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.patterns import Shape
from ncclforensics.grammar.values import GRAMMAR as GRAMMAR_OF_VALUES
from ncclforensics.report.build import Report
from ncclforensics.report.redacted_run import redact
from ncclforensics.report.redaction import assign_pseudonyms
from ncclforensics.tui import content
from ncclforensics.views import (
    card,
    ci_formats,
    json_difference,
    json_report,
    markdown,
    postmortem,
    text_difference,
    text_report,
)
from ncclforensics.views.author_note import Cover
from tests.budget import IS_FULL
from tests.fuzz.documents import DOCUMENTS
from tests.incidents import INCIDENTS, Incident, checked

# What is planted, by kind, and what of it must not leave. Host, user and job are known only from a line that no
# finding cites; a bare name of which nothing says what it is cannot be found.
PLANTED = {
    "host": ("zebra-h07", "zebra"),
    "host of the same family": ("zebra-h19", "zebra"),
    "hosts": ("zebra-h[003-019]", "zebra"),
    "host with domain": ("zebra-h07.okapi.example.de", "okapi"),
    "unknown host with domain": ("lemur-3.okapi.de:29500", "lemur"),
    "domain": ("wandb.okapi.com", "okapi"),
    "user": ("quagga", "quagga"),
    "mail": ("quagga@okapi.com", "quagga"),
    "path": ("/scratch/tapir/quagga/ibex.py", "ibex"),
    "bucket": ("s3://oryx-models/gnu/ibex.pt", "oryx"),
    "other bucket": ("gs://oryx-models/ibex", "oryx"),
    "address of a page": ("https://quagga:pw@wiki.okapi.com/gnu?token=kudu", "kudu"),
    "IPv4": ("10.87.133.201", "10.87.133.201"),
    "IPv4 and port": ("10.87.133.201:29500", "10.87.133.201"),
    "IPv4 between signs": ("x_10.87.133.201#1", "10.87.133.201"),
    "host of an address": ("ip-10-87-133-201", "10-87-133"),
    "GID without colons": ("fe80000000000000bada5503009d1c37", "bada5503009d1c37"),
    "MAC with dots": ("bada.5537.9d1c", "5537.9d1c"),
    "interface of a MAC": ("enxbada55379d1c", "bada55379d1c"),
    "PCI serial number": ("ba-da-55-03-00-9d-1c-37", "00-9d-1c-37"),
    "serial number": ("serial:MT2130X09D1C", "X09D1C"),
    "home of a user": ("~quagga/gnu", "quagga"),
    "mail with a plus": ("quagga+gnu@okapi.com", "quagga"),
    "token of JSON": ("eyJraWQiOiJrdWR1In0.kudukudu", "kudu"),
    "IPv6": ("fe80::bada:55ff:fe37:9d1c", "55ff:fe37"),
    "IPv6 of an interface": ("eth0:fe80::bada:55ff:fe37:9d1c%eth0", "55ff:fe37"),
    "MAC": ("ba:da:55:37:9d:1c", "37:9d:1c"),
    "GUID": ("0xbada5503009d1c37", "bada5503009d1c37"),
    "plain GUID": ("bada5503009d1c37", "bada5503009d1c37"),
    "GUID of verbs": ("bada:5503:009d:1c37", "009d:1c37"),
    "GPU": ("GPU-4bada550-37c1-9d1c-37aa-0123456789ab", "9d1c-37aa"),
    "job": ("job 73499127", "73499127"),
    "job of Slurm": ("SLURM_JOB_ID=73499127", "73499127"),
    "secret": ("WANDB_API_KEY=kudukudukudukudu", "kudu"),
    "token": ("hf_kudukudukudukudukudu", "kudu"),
}  # fmt: skip
FORBIDDEN = re.compile("|".join(sorted({re.escape(needle) for _, needle in PLANTED.values()})))
KNOWN_FROM = (
    "zebra-h07:4100:4100 [0] NCCL INFO Bootstrap: Using eth0:10.87.133.201<0>\n"
    "loading /home/quagga/okapi/config.yaml\nSLURM_JOB_ID=73499127\nslurm-73499127.out\n"
)
FORMATS = {name: module for name, module in all_formats().items() if module.GRAMMARS}
# Lines without columns of text; paths that a colon ends.
NOT_TRIED = ("cpus", "gpu_burn", "markup", "sysfs", "tuner")
SAMPLE = sorted(FORMATS.keys() - NOT_TRIED) if IS_FULL else ["pyspy"]


def planted_lines(shape: Shape) -> list[str]:
    """The examples of a rule with each kind in every field that can hold it; the rule must still match."""
    lines = []
    for pattern in shape.patterns:
        regex = re.compile(pattern.regex)
        match = next((match for example in shape.examples if (match := regex.search(example))), None)
        fields = [match.span(column) for column in pattern.columns if match and match[column]] if match else []
        for text, _ in PLANTED.values():
            for first, last in fields:
                assert match is not None
                blanks = len(match.string[first:last].rstrip(" "))  # behind it, which fill the cell of a table
                before, after = match.string[:first], match.string[first + blanks :]
                is_word = not re.search(r"\w", before[-1:] + after[:1])
                if is_word and regex.search(line := before + text + after):
                    lines.append(line)
                    break
    return lines


def folder_of(grammars: tuple[str, ...], folder: Path) -> None:
    for grammar in grammars:
        for number, shape in enumerate(grammar_file.load(grammar).shapes):
            if shape.grammar != GRAMMAR_OF_VALUES and (lines := planted_lines(shape)):
                apart = [line for planted in lines for line in (shape.examples[0], planted)]  # cells are joined
                text = "\n".join([*shape.examples, *apart, *shape.examples])
                (folder / f"{grammar}-{number}.log").write_text(KNOWN_FROM + text + "\n", encoding="utf-8")


def leaving(report: Report, folder: Path) -> dict[str, str]:
    """Every text that leaves the house with a redacted report."""
    names = assign_pseudonyms(report.run)
    redacted = redact(report, names)
    everything = [text for text, _ in PLANTED.values()]
    title, note = names.text(f"Run {' '.join(everything)}"), names.text("\n\n".join(everything))
    lines = {(given.number, line) for given in report.run.inputs for line in range(1, given.lines_read + 1)}
    texts = {
        "lines": "\n".join(text for _, text in redacted.run.quote(lines).values()),
        "json": json_report.json(redacted).decode(),
        "text": text_report.text(redacted, width=200, verbose=True),
        "text of check": text_report.text(redacted, width=200, everything=True),
        "markdown": markdown.markdown(redacted, everything=True),
        "postmortem": markdown.postmortem(redacted, Cover(title, note, "")),
        "card": card.svg(redacted, Cover(title, note, "")).decode(),
        "html": postmortem.html(redacted, Cover(title, note, "")).decode(),
        "junit": ci_formats.junit(redacted, ["error"]).decode(),
        "sarif": ci_formats.sarif(redacted).decode(),
    }
    file = folder / "leaving.ncclf"
    save(redacted, file, with_tables=True)
    texts |= {f"saved run: {name}": text for name, text in texts_of_saved(file).items()}
    reopened = analyze([str(file)], everything=True)
    texts["screens"] = repr(content.build_content(reopened, is_whole=True))
    good = Incident(INCIDENTS / "one-rank-stops-before-an-allreduce")
    with chdir(good.folder):
        comparison = compare_reports(checked(good).report, reopened)
        texts["diff"] = json_difference.json(comparison).decode() + text_difference.text(comparison, width=200)
    return texts


def texts_of_saved(file: Path) -> dict[str, str]:
    """The values of a saved run's frames, as its reader sees them, and its manifest."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    texts = {name: data.decode() for name, data in members.items() if not name.endswith(".parquet")}
    for name, data in members.items():
        if name.endswith(".parquet"):
            rows = pl.read_parquet(BytesIO(data))
            texts |= {f"{name} {column.name}": json.dumps(column.to_list(), default=str) for column in rows}
    return texts


def leaks(texts: dict[str, str]) -> dict[str, list[str]]:
    """Where something that was planted stands, and the text around it."""
    return {
        name: [text[max(match.start() - 80, 0) : match.end() + 40] for match in FORBIDDEN.finditer(text)][:3]
        for name, text in texts.items()
        if FORBIDDEN.search(text)
    }


@pytest.mark.parametrize("name", SAMPLE)
def test_nothing_that_is_planted_in_lines_leaves(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    folder_of(FORMATS[name].GRAMMARS, tmp_path / "in")

    report = analyze([str(tmp_path / "in")], everything=True)

    assert leaks(leaving(report, tmp_path)) == {}


def with_planted(value: Any, texts: list[str]) -> Any:
    """A document in which every text is one that is planted; keys, numbers and ids of communicators stay."""
    if isinstance(value, dict):
        return {key: with_planted(part, texts) for key, part in value.items()}
    if isinstance(value, list):
        return [with_planted(part, texts) for part in value]
    if isinstance(value, str) and not value.isdigit() and not value.startswith("0x"):
        texts.append(texts.pop(0))
        return texts[-1]
    return value


@pytest.mark.nightly
def test_nothing_that_is_planted_in_documents_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    dump = pickle.loads((INCIDENTS / "a-gpu-stops-inside-an-all-gather" / "nccl_trace_rank_0").read_bytes())
    texts = [text for text, _ in PLANTED.values()]
    (folder / "known.log").write_text(KNOWN_FROM, encoding="utf-8")
    for round_number in range(2):
        for name, document in DOCUMENTS.items():
            (folder / f"{round_number}-{name}").write_text(json.dumps(with_planted(document, texts)), encoding="utf-8")
        (folder / f"{round_number}-trace").write_bytes(pickle.dumps(with_planted(dump, texts), 2))

    report = analyze([str(folder)], everything=True)

    assert leaks(leaving(report, tmp_path)) == {}
