"""Recognise names by what marks them in any text: a label, a variable, a prompt, the columns of `ls` and `ps`.

A name that a label only suggests, such as `node: NAME`, is one unless it is a word of our own reports or of machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

import polars as pl

from ncclforensics.data import redaction_rules
from ncclforensics.rules.registry import all_rules

_IS = r"\b[\"']?\s*[=:]\s*[\"']?"  # what stands between a label and its value
# Names have bounds: without, each place of a long word would be tried to its end.
_USER = r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,63}"
_HOST = r"[A-Za-z][0-9A-Za-z.-]{0,99}(?:\[[0-9]+)?"  # of a list `node[003-019]`, the first
_NUMBERED = r"[A-Za-z][A-Za-z-]{2,63}[0-9][0-9A-Za-z-]{0,63}"
_NAME = r"[A-Za-z][0-9A-Za-z_.-]{2,99}"
_DASHED = r"[a-z0-9]{1,63}(?:-[a-z0-9]+)+"
_TIME = r"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|[+-][0-9:]{4,6}))"
MOST_LABELS = 24  # in one pattern
_WORDS = re.compile(r"[a-z][a-z0-9_]{2,}(?:-[a-z0-9_]+)*")

Patterns = tuple[re.Pattern[str], ...]


def _patterns(*texts: str) -> Patterns:
    """Compile patterns one by one: an alternation of all would be searched without the literals in them."""
    return tuple(map(re.compile, texts))


def _groups_of_labels(words: Sequence[str]) -> list[str]:
    """Match words as `_labels` does, a few at a time: more literals than the engine searches for at once are slow."""
    return [_labels(words[first : first + MOST_LABELS]) for first in range(0, len(words), MOST_LABELS)]


def _labels(words: Iterable[str]) -> str:
    """Match words in small letters, in capitals and as the first of a sentence; a space may be any separator."""
    cased = [form for word in words for form in (word, word.upper(), word.capitalize(), word.title())]
    return "|".join(dict.fromkeys(form.replace(" ", "[ _-]?") for form in cased))


# The number or name of a job: as schedulers print it, in names of their files, behind variables and options.
JOBS = _patterns(
    r"(?i:\bjob(?:s|[ _-]?id|[ _-]?number| allocation)?\b[\"']?(?: ?[=:#] ?| )[\"']?([0-9]{4,}))",
    r"\bStepId=([0-9]{4,})",
    r"\*\*\* (?:STEP|JOB) ([0-9]{4,})",
    r"\b(?:STEP|JOB) ([0-9]{4,})\.[0-9]+\b",
    r"\bslurm-([0-9]{4,})",
    r"\bJob <([0-9]{4,}|[A-Za-z][^>\s]+)>",
    r"\b(raysubmit_[0-9A-Za-z]{8,})",
    rf"\b(?:{'|'.join(redaction_rules.JOB_VARIABLES)}){_IS}([0-9A-Za-z_.-]{{3,}})",
    r"--(?:rdzv|run|job)[-_](?:id|name)[= ][\"']?([0-9A-Za-z_.-]{3,})",
    rf"\b(?:{'|'.join(redaction_rules.JOB_COMMANDS)})\b[^\n]{{0,80}}? (?:-j ?)?([0-9]{{4,}})\b",
    r"\bmax_restarts.{0,80}\brun_id\s*[=:]\s*(\S{3,})",
    r"\brun_id\s*[=:]\s*([0-9A-Za-z_.-]{3,})",
)
# The name of a user: a home folder, a variable, what `id`, sshd, PAM and sudo print.
USERS = _patterns(
    rf"[/\\](?:{'|'.join(redaction_rules.HOMES)})[/\\]+({_USER})",
    r"(?:^|[\s\"'=:])~([a-z_][0-9a-z_-]*)",
    rf"\b[Ss]ession (?:opened|closed|[0-9]+) (?:for|of) user ({_USER})",
    r"\bsudo(?:\[[0-9]+\])?: +(\S+) : ",
    rf"\b(?:publickey|password) for (?:invalid user )?({_USER}) from ",
    rf"\b(?:{'|'.join(redaction_rules.USER_VARIABLES)}){_IS}({_USER})",
    r"\b(?:uid|gid|groups)=[0-9]+\(([^)\s]+)\)",
    rf"\b(?:UserId|GroupId|user|User|username)=({_USER})",
    rf"\b(?:{'|'.join(redaction_rules.JOB_COMMANDS)}|sudo)\b[^\n]{{0,80}}? (?:-u ?|--user[= ])({_USER})",
    rf"\b(?:ssh|scp|sftp|rsync|mosh)\b[^\n]{{0,80}}? ({_USER})@[0-9A-Za-z]",
    rf"\bssh -l ({_USER})",
    rf"\[({_USER})@[0-9]{{4}}-",
    rf"({_USER})@[0-9A-Za-z.-]{{1,99}}:[~/][^\s:]*[$#](?:\s|$)",
    rf"\[({_USER})@[0-9A-Za-z.-]{{1,99}} \S+\][$#]",
    rf"\b({_USER})@(?:[0-9A-Za-z-]{{1,64}}\.){{1,8}}(?:{'|'.join(redaction_rules.TOP_DOMAINS)})\b",
)
# The same where words of another meaning may stand: labels of forms, owners of files, the first columns of `ps`.
LIKELY_USERS = _patterns(
    rf"\b(?:{_labels(redaction_rules.USER_LABELS)}){_IS}({_USER})",
    rf"\b(?:[Ss]ubmitted by|[Ll]ogged in as):? (?:user )?[\"']?({_USER})[\"']?(?: \(({_USER})\))?",
    rf"\b[Uu]ser [\"']?({_USER})[\"']? (?:logged|is not|does not|has|cannot)\b",
    rf"(?:^|\s)--user[= ]({_USER})",
    rf"\bsu (?:-l |- )?({_USER})(?: -c|$)",
    rf"\bchown (?:-\S+ )?({_USER})(?::({_USER}))? ",
    r"(?:-by|Author): ([A-Z]\w{2,63}) ([A-Z]\w{2,63}) <",
    rf"\bCRON\[[0-9]+\]: \(({_USER})\)",
    rf"(?m:^[dlbcps-](?:[rwxsStT-]{{3}}){{3}}[.+@]? +[0-9]+ ({_USER}) +({_USER}) +[0-9])",
    rf"(?m:^({_USER}) +[0-9]+ +(?:[0-9]+\.[0-9] +){{2}}[0-9]+ +[0-9]+ )",
    rf"(?m:^({_USER}) +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]{{2}}:[0-9]{{2}} )",
)
# The name of a host: a variable, a prompt, what ssh, Slurm, torch, `uname` and certificates print.
HOSTS = _patterns(
    rf"\b(?:{_labels(redaction_rules.HOST_LABELS)}){_IS}({_HOST})",
    rf"--?(?:master[-_]addr|rdzv[-_]endpoint|nodelist|host|hostname|H|w)[= ]({_HOST})",
    rf"@({_HOST}):[~/][^\s:]*[$#](?:\s|$)",
    rf"\[{_USER}@({_HOST}) \S+\][$#]",
    rf"\b[Cc]ould not resolve hostname ({_HOST})",
    rf"\bPermanently added '({_HOST})",
    rf"\bconnect to host ({_HOST}) port",
    rf"\bconnect to [\[(]({_HOST})(?:\]:|, )[0-9]",
    rf"\bLinux ({_HOST}) [0-9]+\.[0-9]+\.[0-9]",
    rf"\*\*\* (?:JOB|STEP) \S+ ON ({_HOST}) ",
    r"\bMF[0-9];([^:;\s]+):",
    rf"\bCN=({_HOST})",
)
# The same where words of another meaning may stand; the name has a number.
LIKELY_HOSTS = _patterns(
    rf"\b(?:[Hh]ost|[Nn]odes?|[Ss]erver|[Ii]nstance)\b[\"']?(?:\s*[:=]\s*|\s)[\"']?({_NUMBERED}|{_NAME}\[[0-9]+)",
    rf"(?m:^(?:<[0-9]+>[0-9]? ?)?{_TIME} ({_NUMBERED}) [a-z][0-9A-Za-z_.-]*(?:\[[0-9]+\])?(?::| - ))",
    rf"\[({_NUMBERED})(?::[0-9]{{2,}}[ \]:]|\]\[)",
    rf"({_NUMBERED}) slots=",
    rf"({_NUMBERED}) (?:HCA-|mlx[45])",
    rf"\bssh (?:{_USER}@)?({_NUMBERED})\b",
    rf"[\s\[,(=]({_NUMBERED})\]?:[0-9]{{4,5}}\b",
    rf"[\"']({_NUMBERED})[\"']: ?\[",
    rf"\s({_NUMBERED}):/[a-z]",
    rf"--(?:include|exclude)[= ][\"']?({_NUMBERED})",
    rf"\b(?:[Cc]onnect(?:ed|ing|ion) to|bytes from|PING|ping:?|traceroute to|ssh to) ({_NUMBERED})",
    rf"\b(?:ok|changed|fatal|failed|skipping|unreachable): \[({_NUMBERED})\]",
    rf"(?m:^({_NUMBERED}) \| [A-Z]{{4,}})",
    rf"\b[Rr]ank:? [0-9]+:? (?:is|on|at|runs on) ({_NUMBERED})",
    rf"\b({_NUMBERED})_[0-9]{{2,7}}_[0-9]+\b",
)
# What the job belongs to: projects, accounts, partitions, clusters, pods, runs of experiment trackers.
PROJECTS = _patterns(
    *(rf"(?:{labels})(?:{_IS}|\s\.{{3,}}\s)({_NAME})" for labels in _groups_of_labels(redaction_rules.PROJECT_LABELS)),
    rf"--(?:{_labels(redaction_rules.PROJECT_LABELS)}) ({_NAME})",
    rf"\b[Pp]od(?:[/ ]|=\"?)({_DASHED})",
    r"\bsubmitted to queue <([^>\s]+)>",
    r"\bon cluster ([a-z][0-9a-z_-]{2,})",
    rf"\bSyncing run ({_DASHED})",
    r"\bprojects/([a-z][0-9a-z-]{4,})/",
    rf"(?:{_labels(redaction_rules.REPOSITORY_LABELS)})(?:{_IS}|\s\.{{3,}}\s| )({_NAME})/({_NAME})",
    rf"\b(?:Cloning into|[Ee]xperiment with name) '({_NAME})'",
    rf"\bgit@[0-9A-Za-z.-]+:({_NAME})/([0-9A-Za-z_-]{{3,99}})",
    rf"\bPulling from ({_NAME})/({_NAME})",
    rf"\bdocker run\b[^\n]{{0,200}}? --name[= ]({_NAME})",
    rf"#SBATCH +-[AJpqw] ?({_NAME})",
    rf"#PBS +-[ANPq] +({_NAME})",
    rf"#BSUB +-[GJPq] +({_NAME})",
    rf"\b(?:sbatch|srun|salloc)\b[^\n]{{0,200}}? -[AJp] ({_NAME})",
    rf"\bkubectl\b[^\n]{{0,80}}? (?:-n |--namespace[= ])({_DASHED}|{_NAME})",
    rf"\bkubectl (?:logs|exec|describe|delete|get)(?: -\S+)* (?:pods?[/ ])?({_DASHED})",
    rf"\bin namespace [\"']?({_DASHED}|{_NAME})",
    rf"\b(?:conda|mamba) activate ({_NAME})",
    rf"(?m:^\(({_NAME})\) \[?{_USER}@[0-9A-Za-z])",
    rf"\bgcloud config set project ({_NAME})",
)
ACCOUNT_NUMBERS = _patterns(r"(?:\b|_)(?:[Aa]ccount|ACCOUNT)(?:_[Ii][Dd])?\b[\"']?(?:\s*[:=]\s*|\s)[\"']?([0-9]{12})\b")
SERIAL_NUMBERS = _patterns(
    r"(?i:(?:\b|_)serial(?:[ _-]?(?:number|num|no))?\b[\"']?\s*[=:]\s*[\"']?([0-9A-Z-]*[0-9][0-9A-Z-]*))",
    r"\bSN\b[\"']?(?:\s*[:=]\s*|\s)[\"']?([0-9A-Z-]*[0-9][0-9A-Z-]*)",
)
BUCKETS = _patterns(
    rf"(?:BUCKET(?:_NAME)?|bucket_name){_IS}([a-z0-9][a-z0-9.-]{{2,62}})",
    rf"\b[Bb]ucket{_IS}([a-z0-9]+(?:[.-][a-z0-9]+)+)",
    r"\b[Bb]ucket [\"']?([a-z0-9]+(?:[.-][a-z0-9]+)+)[\"']? (?:not found|does not exist|is empty)",
)
DOMAINS = _patterns(r"\b((?:[0-9A-Za-z][0-9A-Za-z-]{0,63}\.){1,8}[A-Za-z]{2,11})\b")


def found(patterns: Patterns, text: str) -> list[str]:
    """Return what the groups of patterns find in a text."""
    matches = (match for pattern in patterns for match in pattern.finditer(text))
    return [group for match in matches for group in match.groups() if group]


def found_in_file(patterns: Patterns, text: str) -> list[str]:
    """Return the same for the text of a file, each name once: Polars finds the places 40 times as fast as Python."""
    names: dict[str, None] = {}
    rows = pl.Series([text])
    for pattern in patterns:
        places = rows.str.extract_all(pattern.pattern).explode().drop_nulls().unique(maintain_order=True)
        names |= dict.fromkeys(name for place in places for name in found((pattern,), place))
    return list(names)


@cache
def _ordinary_words() -> frozenset[str]:
    """The words of the rules' pages: what reports say about NCCL, machines and schedulers."""
    words = {word for rule in all_rules() for word in _WORDS.findall(rule.page.lower())}
    return frozenset({*words, *(part for word in words for part in word.split("-")), *redaction_rules.ORDINARY_WORDS})


def is_special(name: str) -> bool:
    """Whether a name identifies something, and is no word that a sentence may hold as well."""
    return (
        len(name) >= redaction_rules.SHORTEST_USER
        and name not in redaction_rules.EVERYWHERE
        and name.lower() not in redaction_rules.COMMON_USERS
        and name.lower() not in _ordinary_words()
    )


def is_numbered_host(name: str) -> bool:
    """Whether a name with a number may be a host's, and not a rank's, a device's or a release's."""
    return not name.lower().startswith(redaction_rules.NO_HOSTS)


def stems(name: str) -> list[str]:
    """The words in the name of a host or a domain that tell the cluster or the site: `zebra` of `zebra-gpu-07`."""
    parts = re.split(r"[^A-Za-z]+", name)
    return [part for part in parts if len(part) >= redaction_rules.SHORTEST_STEM and is_special(part)]


def family_of(name: str) -> str:
    """What stands before the number in the name of a host; empty if others with a number may be no hosts."""
    family = name.rstrip("0123456789")
    is_family = redaction_rules.SHORTEST_FAMILY <= len(family) < len(name) and family not in redaction_rules.NO_FAMILIES
    return family if is_family and "." not in name else ""


def patterns_of_families(families: Iterable[str]) -> Patterns:
    """Return what matches a host that is numbered as known ones are, and a list of such hosts."""
    known = "|".join(re.escape(family) for family in sorted(families, key=len, reverse=True))
    begin = rf"(?<![0-9A-Za-z])(?<![0-9A-Za-z]-)(?:{known})"
    return _patterns(rf"{begin}[0-9]+(?![0-9A-Za-z])", rf"{begin}\[[0-9, -]+\]")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of this name holds a secret; short numbers do not: `key=0` is an argument of a split."""
    words = {part.upper() for part in name.replace("-", "_").replace(".", "_").split("_")}
    is_named = not words.isdisjoint(redaction_rules.SECRET_WORDS) or any(
        part in name.upper() for part in redaction_rules.SECRET_PARTS
    )
    return is_named and not (value.isdecimal() and len(value) < redaction_rules.PLAIN_NUMBER)
