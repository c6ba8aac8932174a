"""A run and its report with pseudonyms: redacted where they are read, judged on the original."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from ncclforensics.archive.parquet import VOCABULARY
from ncclforensics.data.settings import Settings
from ncclforensics.errors import Defect
from ncclforensics.frames.protocol import Frames
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.report.build import Report
from ncclforensics.report.marked_names import is_secret
from ncclforensics.report.pseudonyms import REMOVED, Pseudonyms
from ncclforensics.report.redaction import add_pseudonyms, assign_pseudonyms, write_map
from ncclforensics.report.selection import Selection
from ncclforensics.rules.finding import Finding

Quotes = dict[tuple[int, int], tuple[int, str]]  # (source, line) -> (true line, text)
NOT_TEXT = "\ufffd"  # what the first byte of a pickle is shown as


class RedactedRun:
    """A run whose frames are redacted on access; the analyses are computed on the original run."""

    def __init__(self, run: Frames, pseudonyms: Pseudonyms) -> None:
        self._run, self._pseudonyms = run, pseudonyms
        self._frames: dict[str, pl.DataFrame] = {}
        self.inputs = [
            replace(
                reading,
                source=reading.source._replace(path=pseudonyms.path(reading.source.path)),
                problems=[pseudonyms.text(problem) for problem in reading.problems],
            )
            for reading in run.inputs
        ]

    @property
    def dialect(self) -> Dialect:
        """Describes the parsed frames."""
        return self._run.dialect

    @property
    def settings(self) -> Settings:
        """What the site's configuration says, with redacted paths; its words are left out."""
        settings, path = self._run.settings, self._pseudonyms.path
        files, rule_folders = (tuple(map(path, paths)) for paths in (settings.files, settings.rule_folders))
        return settings._replace(files=files, rule_folders=rule_folders, redact_words=(), hosts={}, racks={}, rails={})

    @property
    def hashes(self) -> dict[int, str]:
        """Number of an input -> SHA-256 of its bytes, where a saved run holds it."""
        return self._run.hashes

    @property
    def defects(self) -> list[Defect]:
        """What failed so far, with redacted messages."""
        text = self._pseudonyms.text
        return [
            defect._replace(error=text(defect.error), own_place=text(defect.own_place)) for defect in self._run.defects
        ]

    @property
    def broken(self) -> set[str]:
        """Frames that are empty because an analysis failed."""
        return self._run.broken

    @property
    def tally(self) -> pl.DataFrame:
        """Return the counts of lines, which need no redaction."""
        return self._run.tally

    @property
    def kinds(self) -> dict[int, str]:
        """Return the kinds of the sources."""
        return self._run.kinds

    def has(self, name: str) -> bool:
        """Whether the frame has rows; redaction neither adds nor removes rows."""
        return self._run.has(name)

    def quote(self, lines: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
        """Quote lines, redacted."""
        return redact_quotes(self._run, self._run.quote(lines), self._pseudonyms)

    def whole_text(self, source: int, line: int) -> str:
        """Quote a line with the next ones that it goes on in, redacted."""
        return self._pseudonyms.text(self._run.whole_text(source, line))

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            kept = [column for frame, column in VOCABULARY if frame == name]
            redacted = redact_frame(self._run[name].drop(kept, strict=False), self._pseudonyms)
            self._frames[name] = self._run[name].with_columns(redacted)
        return self._frames[name]


def redact_quotes(run: Frames, quotes: Quotes, pseudonyms: Pseudonyms) -> Quotes:
    """Redact the texts of lines; those of a pickle are left out, since names have no end in it."""

    def redacted(source: int, text: str) -> str:
        is_pickle = run.inputs[source].is_document and text.startswith(NOT_TEXT)
        return REMOVED if is_pickle else pseudonyms.text(text)

    return {place: (line, redacted(place[0], text)) for place, (line, text) in quotes.items()}


def redact_frame(rows: pl.DataFrame, pseudonyms: Pseudonyms) -> pl.DataFrame:
    """Redact every text of the rows, and remove values next to the name of a secret."""
    name = next((column for column in ("variable", "name") if {column, "value"} <= set(rows.columns)), None)
    columns: list[pl.Series] = []
    for column in rows.iter_columns():
        if column.dtype in (pl.String, pl.Categorical):
            columns.append(_map_texts(column, pseudonyms.text))
        elif column.dtype.is_nested() and column.len():
            values = [_redacted(value, pseudonyms) for value in column.to_list()]
            columns.append(pl.Series(column.name, values, dtype=column.dtype))
        else:
            columns.append(column)
    redacted = pl.DataFrame(columns)
    if name is None or rows["value"].dtype not in (pl.String, pl.Categorical):
        return redacted
    pairs = rows.select(pl.col(name, "value").cast(pl.String)).iter_rows()
    secret = pl.Series([bool(a and b and is_secret(a, b)) for a, b in pairs], dtype=pl.Boolean)
    value = pl.when(secret).then(pl.lit(REMOVED)).otherwise(pl.col("value").cast(pl.String))
    return redacted.with_columns(value.cast(rows["value"].dtype).alias("value"))


def _redacted(value: Any, pseudonyms: Pseudonyms) -> Any:
    """Redact the texts in a value of a list or a struct."""
    if isinstance(value, str):
        return pseudonyms.text(value)
    if isinstance(value, list):
        return [_redacted(part, pseudonyms) for part in value]
    if isinstance(value, dict):
        return {name: _redacted(part, pseudonyms) for name, part in value.items()}
    return value


def _map_texts(column: pl.Series, change: Callable[[str], str]) -> pl.Series:
    old = column.cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
    new = {text: to for text in old if (to := change(text)) != text}
    if not new:
        return column
    return column.cast(pl.String).replace(list(new), list(new.values())).cast(column.dtype)


def redact(report: Report, pseudonyms: Pseudonyms) -> Report:
    """Return the report with pseudonyms; its findings and verdicts are those of the original."""
    host = report.selection.host
    remedies = {rule.name: rule.section("Do") for rule in report.rules}  # fixed texts without names
    for finding in (*report.findings, *report.not_selected):
        for name in finding.hosts:  # a tool of the fabric may name hosts of which no log is here
            pseudonyms.host(name)

    def redacted(finding: Finding) -> Finding:
        return replace(
            finding,
            title=pseudonyms.text(finding.title),
            detail=pseudonyms.text(finding.detail),
            remedy=finding.remedy if finding.remedy == remedies[finding.rule] else pseudonyms.text(finding.remedy),
            hosts=[pseudonyms.host(name) for name in finding.hosts],
            place=pseudonyms.text(finding.place),
        )

    return Report(
        RedactedRun(report.run, pseudonyms),
        redact_quotes(report.run, report.quotes, pseudonyms),
        Selection(report.selection.ranks, pseudonyms.host(host) if host else None, report.selection.communicator),
        [redacted(finding) for finding in report.findings],
        report.rules,
        {job: look._replace(text=pseudonyms.text(look.text)) for job, look in report.looks.items()},
        [redacted(finding) for finding in report.not_selected],
        report.hashes,
        is_about_slow=report.is_about_slow,
        is_about_hang=report.is_about_hang,
    )


def redact_report(report: Report, map_file: Path | None) -> tuple[Report, Pseudonyms]:
    """Return the report with pseudonyms, and the pseudonyms; read and write the pseudonym map in `map_file`."""
    (redacted,), pseudonyms = redact_reports([report], map_file)
    return redacted, pseudonyms


def redact_reports(reports: list[Report], map_file: Path | None) -> tuple[list[Report], Pseudonyms]:
    """Return reports with the same pseudonyms for the same names; read and write the pseudonym map in `map_file`."""
    pseudonyms = assign_pseudonyms(reports[0].run, map_file)
    for report in reports[1:]:
        add_pseudonyms(report.run, pseudonyms)
    redacted = [redact(report, pseudonyms) for report in reports]
    if map_file is not None:
        write_map(pseudonyms, map_file)
    return redacted, pseudonyms
