"""Groups of options that commands share: a command takes each group as one value, its help shows every option."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from ncclforensics.cli.analysis import load_report
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import (
    Comm,
    Config,
    FailOn,
    FailOnOption,
    Format,
    FormatOption,
    Host,
    NoColor,
    On,
    Output,
    Quiet,
    RankFrom,
    Ranks,
    Redact,
    RedactMap,
    Since,
    Until,
    Verbose,
)

if TYPE_CHECKING:
    from ncclforensics.data.settings import Settings
    from ncclforensics.report.build import Report


class Printing(NamedTuple):
    """How a report is written, and from which severity on the exit code is 1."""

    report_format: FormatOption = Format.TEXT
    output: Output = None
    fail_on: FailOnOption = FailOn.WARNING
    verbose: Verbose = False
    no_color: NoColor = False


class Shown(NamedTuple):
    """Which lines are used, and what is shown of the run."""

    ranks: Ranks = None
    host: Host = None
    comm: Comm = None
    since: Since = None
    until: Until = None


ALL = Shown()


class Reading(NamedTuple):
    """How inputs are read, and what is replaced in them."""

    rank_from: RankFrom = None
    redact: Redact = False
    redact_map: RedactMap = None
    on: On = None
    config: Config = None
    quiet: Quiet = False

    @property
    def is_redacted(self) -> bool:
        """Whether names are replaced by pseudonyms."""
        return self.redact or self.redact_map is not None

    def load(
        self,
        paths: list[str],
        shown: Shown = ALL,
        *,
        full: bool = True,
        everything: bool = True,
        settings: Settings | None = None,
        **options: Any,
    ) -> Report:
        """Analyse these paths, with other `options` of `load_report`. `settings`: what `configure` has returned."""
        from ncclforensics.report.selection import Selection, parse_ranks

        selection = Selection(parse_ranks(shown.ranks) if shown.ranks else frozenset(), shown.host, shown.comm)
        return load_report(
            paths,
            full=full,
            everything=everything,
            selection=selection,
            rank_from=self.rank_from,
            since=shown.since,
            until=shown.until,
            on=self.on,
            settings=settings or configure(self.config, quiet=self.quiet),
            quiet=self.quiet,
            **options,
        )

    def redacted(self, report: Report) -> Report:
        """Return a report with pseudonyms, if they are asked for."""
        if not self.is_redacted:
            return report
        from ncclforensics.report.redacted_run import redact_report

        return redact_report(report, self.redact_map)[0]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a group by the options of this group."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if hasattr(hint, "_fields")}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if (group := groups.get(name)) is None:
            parameters.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))
            continue
        of_fields = get_type_hints(group, include_extras=True)
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=of_fields[name])
            for name, default in group._field_defaults.items()
        ]

    def with_single_options(**values: Any) -> None:
        given = {name: group(*map(values.pop, group._fields)) for name, group in groups.items()}
        command(**values, **given)

    with_single_options.__name__, with_single_options.__doc__ = command.__name__, command.__doc__
    # typer reads both.
    vars(with_single_options)["__signature__"] = Signature(parameters)
    with_single_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_single_options
