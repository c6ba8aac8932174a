"""What the rules of a module find in the incidents, before and after a change of the module."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ncclforensics.frames.protocol import Frames
from ncclforensics.rules import registry, running
from ncclforensics.rules.finding import Known
from ncclforensics.rules.registry import Rule
from tests.incidents import ALL, checked

SECONDS = 30  # a change that has not answered by then is noticed
Outcome = tuple[Any, list[str]]


class _Run(NamedTuple):
    frames: Frames
    known: tuple[Known, Known]  # what findings of the program's rules, and of a user's own, may name
    is_hang: bool  # of `check`, the incident's report then shows the names of the rules alone


class RulesOnIncidents:
    """The findings of a module's rules on every incident; `names` is empty for a module without rules."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = ".".join(path.with_suffix("").parts)
        registry.all_rules()
        import_module(self.module)
        self.rules = self._registered()
        self.names = set(self.rules)
        self.runs: list[_Run] = []
        if self.rules:
            reports = [(incident, checked(incident).report) for incident in ALL]
            self.runs = [_Run(report.run, running._known(report.run), one.is_hang) for one, report in reports]
        self.before = {name: [_outcome(rule, run) for run in self.runs] for name, rule in self.rules.items()}

    def notice(self, source: str) -> bool:
        """Whether a rule of the changed module answers otherwise on any incident, or fails, or does not end."""
        if not self.rules:
            return False
        before = sys.modules[self.module]
        module = ModuleType(self.module)
        module.__package__ = before.__package__
        signal.signal(signal.SIGALRM, _raise_timeout)
        signal.alarm(SECONDS)
        try:
            self._forget()
            sys.modules[self.module] = module
            exec(compile(source, str(self.path), "exec"), module.__dict__)
            return self._differs(self._registered())
        except Exception:
            return True
        finally:
            signal.alarm(0)
            sys.modules[self.module] = before
            self._forget()
            registry._RULES.update(self.rules)

    def _differs(self, rules: dict[str, Rule]) -> bool:
        if set(rules) != self.names:
            return True
        for name, rule in rules.items():
            if _claims(rule) != _claims(self.rules[name]):
                return True
            before = self.before[name]
            # Where the rule speaks, a change shows soonest.
            numbers = sorted(range(len(before)), key=lambda number: not before[number][0])
            if any(_outcome(rule, self.runs[number]) != before[number] for number in numbers):
                return True
        return False

    def _registered(self) -> dict[str, Rule]:
        return {name: rule for name, rule in registry._RULES.items() if rule.module == self.module}

    def _forget(self) -> None:
        for name in self._registered():
            del registry._RULES[name]


def _claims(rule: Rule) -> tuple[Any, ...]:
    return rule.category, rule.severity, rule.of, rule.hang, rule.fallback, rule.of_failures


def _outcome(rule: Rule, run: _Run) -> Outcome:
    """What the tests see of a rule on an incident: its findings, or that it has some, and its defects."""
    count = len(run.frames.defects)
    findings = running._findings(run.frames, rule, *run.known)
    defects = [str(defect) for defect in run.frames.defects[count:]]
    del run.frames.defects[count:]
    is_name_alone = run.is_hang and not rule.hang
    return bool(findings) if is_name_alone else [repr(finding) for finding in findings], defects


def _raise_timeout(*_: object) -> None:
    raise TimeoutError
