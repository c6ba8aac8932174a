"""Rules and frames in the site: an index of rules, links to their sources, and lines of an incident that shows each."""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby
from pathlib import Path

from message_pages import links_of_rule, with_links
from sphinx.application import Sphinx

from ncclforensics import analyze
from ncclforensics.data.names import printable, sentence
from ncclforensics.report.build import Report
from ncclforensics.rules.registry import all_rules

INCIDENTS = Path(__file__).parents[2] / "fixtures" / "incidents"
RULES, FRAMES, INDEX = "rules/", "frames/", "rules"
# The index leads to these pages. In the sidebar, 250 more entries would help nobody and cost most of the build.
ORPHAN = "---\norphan: true\n---\n"
# Repositories whose issues are cited by the repository's name alone.
OWNERS = {
    "NVIDIA": ("nccl", "nccl-tests", "TensorRT-LLM", "NVSentinel"),
    "ROCm": ("rccl", "rocm-systems"),
    "aws": ("aws-ofi-nccl",),
    "deepspeedai": ("DeepSpeed",),
    "espnet": ("espnet",),
    "FlagOpen": ("FlagScale",),
    "hiyouga": ("LlamaFactory",),
    "horovod": ("horovod",),
    "jax-ml": ("jax",),
    "Lightning-AI": ("lit-llama",),
    "LargeWorldModel": ("LWM",),
    "llm-d": ("llm-d-benchmark",),
    "meta-pytorch": ("torchcomms",),
    "microsoft": ("mscclpp", "WSL"),
    "NVIDIA-NeMo": ("Megatron-Bridge",),
    "om-ai-lab": ("VLM-R1",),
    "Oneflow-Inc": ("oneflow",),
    "openucx": ("ucx",),
    "pytorch": ("pytorch",),
    "rapidsai": ("dask-cuda",),
    "ray-project": ("ray", "ray_lightning"),
    "rwth-i6": ("returnn",),
    "sgl-project": ("sglang",),
    "vllm-project": ("vllm",),
}
REPOSITORIES = {name: f"{owner}/{name}" for owner, names in OWNERS.items() for name in names}
ISSUE = re.compile(r"(?<![\w/#-])((?:[\w.-]+/)?[\w.-]+)#(\d+)\b")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what is added to the pages of rules when they are read."""
    app.add_config_value("rule_examples", True, "env", bool)
    app.connect("source-read", _add)
    return {"parallel_read_safe": True}


def _add(app: Sphinx, page: str, source: list[str]) -> None:
    if page in ("index", "variables"):
        source[0] = with_links(page, source[0])
    elif page == INDEX:
        source[0] += _index()
    elif page.startswith(RULES):
        before, heading, after = source[0].partition("## Sources\n")
        example = _example(page.removeprefix(RULES), app)
        links = links_of_rule(page.removeprefix(RULES))
        source[0] = ORPHAN + before + example + links + heading + ISSUE.sub(_link, after)
    elif page.startswith(FRAMES):
        source[0] = ORPHAN + with_links(page, source[0])


def _link(issue: re.Match[str]) -> str:
    """Link an issue on GitHub, if the repository is known."""
    name = issue[1] if "/" in issue[1] else REPOSITORIES.get(issue[1])
    return f"[{issue[0]}](https://github.com/{name}/issues/{issue[2]})" if name else issue[0]


def _index() -> str:
    rules = sorted(all_rules(), key=lambda rule: (str(rule.category), rule.name))
    rows = []
    for category, group in groupby(rules, key=lambda rule: str(rule.category)):
        rows += ["", f"## {category}", "", "| rule | severity | means |", "|---|---|---|"]
        rows += [
            f"| [{rule.name}](rules/{rule.name}.md) | {rule.severity} | {_cell(rule.page.splitlines()[0])} |"
            for rule in group
        ]
    return "\n".join([*rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _example(name: str, app: Sphinx) -> str:
    """Return the first lines that the rule cites in an incident that shows it."""
    incident = next((folder for folder in sorted(INCIDENTS.iterdir()) if name in _shown_by(folder)), None)
    if incident is None:
        return ""
    text = f"## Example\n\nThe incident `{incident.name}` in `fixtures/incidents` shows it.\n"
    if app.config.rule_examples:
        report = _report(incident)
        findings = [finding for finding in report.findings if finding.rule == name and finding.evidence]
        lines = [printable(line["text"]) for finding in findings[:1] for line in report.evidence(finding)[:3]]
        if lines:
            text += f"\n{sentence(findings[0].title)}\n\n````text\n" + "\n".join(lines) + "\n````\n"
    return f"{text}\n"


@cache
def _shown_by(incident: Path) -> frozenset[str]:
    """Return the rules that the recorded report of an incident names at its end."""
    report = incident / "report.md"
    if not report.exists():
        return frozenset()
    return frozenset(report.read_text(encoding="utf-8").rpartition("\n\n")[2].split("`")[1::2])


@cache
def _report(incident: Path) -> Report:
    return analyze(incident, everything=True)
