"""The text of `explain` for a variable of NCCL, a plugin, RCCL or PyTorch."""

from __future__ import annotations

from difflib import get_close_matches
from textwrap import wrap

from ncclforensics.data.variable_catalogue import NCCL, NOTHING, Variable, judges, names, releases_examined, variable

WIDTH = 100  # columns
MOST_SUGGESTIONS = 4
NCCL_CHOOSES = "-2"  # a default of parameters that NCCL sets itself (nccl: src/include/param.h and its callers)
PREFIXES = ("NCCL_", "NVSHMEM_", "OFI_NCCL_", "RCCL_", "TORCH_FR_", "TORCH_NCCL_")


def of_variable(name: str) -> str | None:
    """Return the page of a variable, which may be given with a value; or None, where the catalogue does not have it."""
    found = variable(_plain(name))
    if found is None:
        return None
    rows = [f"{found.name}  ({_reader(found)})", "", *wrap(found.what, WIDTH), ""]
    for label, text in {
        "Values": found.values,
        "Default": default(found),
        "Releases": releases(found),
        "Watch out": found.pitfall,
        "Instead": found.instead,
        "Judged by": ", ".join(judges(found)),
        "Source": found.source,
    }.items():
        rows += wrap(f"{label}: {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False) if text else []
    return "\n".join(rows)


def unknown_variable(name: str) -> str | None:
    """Say that the catalogue does not have a variable, and which names are similar; None for what is no such name."""
    wanted = _plain(name)
    if not wanted.startswith(PREFIXES):
        return None
    similar = get_close_matches(wanted, sorted(names()), n=MOST_SUGGESTIONS, cutoff=0.75)
    nearest = f"similar names: {', '.join(similar)}" if similar else "no known name is similar"
    return f"{wanted}: neither NCCL nor RCCL, PyTorch or a plugin that the catalogue covers reads it; {nearest}"


def default(found: Variable) -> str:
    """Return the default of a variable, and where it changed, since which release."""
    values = [f"{value} (NCCL chooses)" if value == NCCL_CHOOSES else value for _, value in found.defaults]
    if len(values) == 1:
        return values[0]
    return "; ".join(f"{value} from {release}" for value, (release, _) in zip(values, found.defaults, strict=True))


def releases(found: Variable) -> str:
    """Return which releases read a variable."""
    if found.component == NOTHING:
        oldest, newest = releases_examined(NCCL)
        ended = f"up to {found.last}; " if found.last else ""
        return f"{ended}no release of NCCL from {oldest} to {newest} reads it"
    if not found.first:
        return ""
    oldest, newest = releases_examined(found.component)
    since = f"{found.first} or before" if found.first == oldest else found.first
    return f"from {since} to {found.last}" if found.last else f"from {since} on; the newest examined is {newest}"


def _reader(found: Variable) -> str:
    """Return whose variable it is."""
    if found.component == NOTHING:
        return "an old variable of NCCL" if found.last else "no variable of NCCL"
    return f"a variable of {found.component}"


def _plain(name: str) -> str:
    """The name in what a shell, mpirun or a script writes: `export NCCL_DEBUG=INFO`, `-x NCCL_DEBUG`, `$NCCL_DEBUG`."""
    words = name.partition("=")[0].removeprefix("export ").removeprefix("-x ")
    return words.strip("${} ").upper()
