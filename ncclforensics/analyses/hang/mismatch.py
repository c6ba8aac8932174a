"""Do the ranks of a communicator call the same things in the same order? If not: who differs, and how.

Compare the nth collective of every member by name, count, datatype, op and root (formats: section 5.4). A call that
is left out or added shifts all that follow; it may also leave the sequence of its communicator equal, only shorter, so
that it shows against the calls on other communicators.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile

import polars as pl

from ncclforensics.analyses.hang.job import Case, Diagnosis, Row

ARGUMENTS = ("count", "datatype", "op", "root")
FIELDS = ("name", *ARGUMENTS)
HORIZON = 500  # calls after the divergence that are compared

Token = tuple[int, int]  # which communicator (to this rank), signature
Calls = tuple[list[Token], list[Row]]


def differing_calls(case: Case) -> Diagnosis | None:
    """The first call on which the members of a communicator differ."""
    found = [_diverged(case, key, nth) for key, nth in case.divergence.items()]
    if not found:
        found = [j for key in sorted({w["key"] for w in case.waits}) if (j := _passed_by(case, key)) is not None]
    if not found:
        return None
    first = min(found, key=lambda j: (not j.culprits, _moment(j)))
    first.victims = [rank_id for rank_id in case.rank_ids if rank_id not in first.culprits]
    if len(first.culprits) == len(case.members[str(first.key)]):
        first.doubt("likely")
    if case.unseen(str(first.key)):
        first.doubt("likely")
    if any(row["is_inferred"] for row in case.members[str(first.key)]):
        first.doubt("likely")
    if any(case.is_doubtful(rank_id) for rank_id in first.culprits):
        first.doubt("possible")
    return first


def _moment(diagnosis: Diagnosis) -> int:
    """How far the culprit had come: several communicators may diverge, the first one is the cause."""
    pos = [e["line"] for e in diagnosis.evidence_lines if e["what"] == "minority"]
    return int(min(pos, default=0))


def _diverged(case: Case, key: str, nth: int) -> Diagnosis:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in case.collectives_at(key, nth):
        groups[row["signature"]].append(row)
    right = _majority(case, key, nth, groups)
    others = [row for signature, rows in groups.items() if signature != right for row in rows]
    culprits = sorted({row["rank_id"] for row in others})
    model = (groups[right] if right is not None else next(iter(groups.values())))[0]
    against = others[0] if right is not None else list(groups.values())[1][0]
    how = _how(case, model, against)
    called = model if how != "extra" or right is not None else against
    diagnosis = Diagnosis("collective-mismatch", "", culprits=culprits, key=key, call=called, how=how)
    diagnosis.fields = [name for name in FIELDS if model[name] != against[name]]
    if right is not None and len(groups[right]) <= len(others):
        diagnosis.doubt("likely")  # the sister communicators decided which of two halves is right
    diagnosis.reason = _told(how, against, model)
    diagnosis.show("minority", others[:4])
    diagnosis.show("majority", groups[right][:2] if right is not None else [model])
    return diagnosis


def _majority(case: Case, key: str, nth: int, groups: dict[int, list[Row]]) -> int | None:
    """The signature that is right: that of most members, or where they are even, that of the sister communicators."""
    sizes = sorted(((len(rows), signature) for signature, rows in groups.items()), reverse=True)
    if sizes[0][0] > sizes[1][0]:
        return sizes[0][1]
    some = next(iter(groups.values()))[0]
    role, nranks = case.roles[some["rank_id"], key], some["nranks"]
    sisters = [
        other
        for other, rows in case.members.items()
        if other != key and rows[0]["nranks"] == nranks and case.roles[rows[0]["rank_id"], other] == role
    ]
    theirs = {row["signature"] for other in sisters for row in case.collectives_at(other, nth)}
    agreed = theirs & set(groups)
    return agreed.pop() if len(theirs) == 1 and agreed else None


def _passed_by(case: Case, key: str) -> Diagnosis | None:
    """A call that some members never made, although they made later ones: left out there, or made too often here."""
    edges = [w for w in case.waits if w["key"] == key and w["kind"] == "collective"]
    if not edges:
        return None
    nth = min(w["nth"] for w in edges)
    made = case.collectives_at(key, nth)
    makers = {row["rank_id"] for row in made}
    lacking = sorted({w["waits_for"] for w in edges if w["nth"] == nth})
    some = sorted(makers)[:3]
    made_by = {rank_id: _tokens(case.calls_of(rank_id), case) for rank_id in {*some, *lacking}}
    passed = [s for s in lacking if any(_has_passed(key, nth, made_by[maker], made_by[s]) for maker in some)]
    if not passed or len(passed) < len(lacking):
        return None  # somebody just has not come so far
    if len(passed) == len(makers):
        return None  # even: no telling which of the two is right
    skipped = len(passed) < len(makers)
    culprits = passed if skipped else sorted(makers)
    how = "skipped" if skipped else "extra"
    call = next(row for row in made)
    diagnosis = Diagnosis("collective-mismatch", "", culprits=culprits, key=key, call=call, how=how)
    diagnosis.reason = (
        f"made later calls without this one: {_call(call)} is missing in its sequence"
        if skipped
        else f"made one {_call(call)} more than the others, who went on without it"
    )
    if skipped:
        diagnosis.show("minority", [row for s in passed[:4] if (row := case.last_call(s)) is not None])
        diagnosis.show("majority", made[:2])
    else:
        diagnosis.show("minority", made[:4])
        diagnosis.show("majority", [row for s in lacking[:2] if (row := case.last_call(s)) is not None])
    diagnosis.doubt("likely")
    return diagnosis


def _has_passed(key: str, nth: int, maker: Calls, lacking: Calls) -> bool:
    """Whether `lacking` has made calls that `maker` made only after the call in question."""
    theirs, their_rows = maker
    place = next((n for n, row in enumerate(their_rows) if row["key"] == key and row["nth"] == nth), None)
    if place is None:
        return False
    after = theirs[place + 1 :]
    mine, rows = lacking
    before = [n for n, row in enumerate(rows) if row["key"] == key]
    rest = mine[before[-1] + 1 :] if before else mine
    last_common = next((n for n in range(place - 1, -1, -1) if their_rows[n]["key"] == key), -1)
    between = theirs[last_common + 1 : place]
    tail = rest[len(between) :] if rest[: len(between)] == between else rest
    return bool(tail) and bool(after) and tail[0] == after[0] and theirs[place] not in tail[:1]


def _tokens(calls: pl.DataFrame, case: Case) -> Calls:
    rows = case.told(calls.filter(pl.col("nth").is_not_null()).tail(HORIZON))
    return [(case.roles[row["rank_id"], row["key"]], row["signature"]) for row in rows], rows


def _how(case: Case, model: Row, against: Row) -> str:
    """Align the two sequences again behind the difference, and see which explanation carries furthest.

    A call that was left out shows at once among the calls on all communicators, and on its own only at the next one.
    """
    theirs, mine = (_since_agreement(case, row) for row in (model, against))
    alike = _common(theirs, mine)
    theirs, mine = theirs[alike:], mine[alike:]
    explained = {
        "skipped": _common(theirs[1:], mine),
        "extra": _common(theirs, mine[1:]),
        "arguments": _common(theirs[1:], mine[1:]),
        "swapped": _common(theirs[2:], mine[2:]) + 1 if len(mine) > 1 and theirs[:2] == mine[:2][::-1] else -1,
    }
    furthest = max(explained.values())
    how = next(name for name in ("arguments", *explained) if explained[name] == furthest)
    return how if how != "arguments" or model["name"] == against["name"] else "another"


def _since_agreement(case: Case, row: Row) -> list[Token]:
    """The calls of a rank after the last one on which it agreed on this communicator."""
    mine = case.calls_of(row["rank_id"])
    agreed = mine.filter((pl.col("key") == row["key"]) & (pl.col("nth") == row["nth"] - 1))["pos"]
    since = mine.filter(pl.col("pos") > agreed[0]) if agreed.len() else mine
    return _tokens(since.head(HORIZON), case)[0]


def _common(one: list[Token], other: list[Token]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _told(how: str, mine: Row, theirs: Row) -> str:
    match how:
        case "skipped":
            return f"left out one call: {_call(theirs)}"
        case "extra":
            return f"made one call more: {_call(mine)}"
        case "swapped":
            return f"made two calls in the other order: {_call(mine)} before {_call(theirs)}"
        case "another":
            return f"called {mine['name']} where the others called {theirs['name']}"
    differing = [name for name in ARGUMENTS if mine[name] != theirs[name]]
    return f"made the same call with another {' and '.join(differing) or 'argument'}"


def _call(row: Row) -> str:
    return f"{row['name']} of {row['count']}"
