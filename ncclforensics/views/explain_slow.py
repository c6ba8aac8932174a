"""The pages of `explain` on the verdicts of `slow`, which are no findings."""

from __future__ import annotations

OF_SLOW = {
    "slow-rank": """One rank makes all others wait, in most steps.

Means: outside of calls it works longer than the others, by its own clock; without it a step would be shorter by
the share that is told. The others wait for it in their calls, and have the longer ones: the rank with the
shortest calls is not always the culprit (docs/slow.md).
Not when: another rank is the last in each step (uneven-work); the program gives it more work on purpose.
Do: look at clocks, power, heat and processes of its GPU and host (`nvidia-smi -q -d
PERFORMANCE,CLOCK,TEMPERATURE`), at its stacks (`py-spy dump`, ten times), and at what it loads and logs. It is
mostly no broken machine.""",
    "slow-host": """All ranks of one host make the others wait.

Means: each of them works longer outside of calls than the ranks of other hosts, and together they cost more
than any alone.
Do: look at what they share: CPU, memory, power, cooling, file systems, other jobs on this host.""",
    "slow-group": """All ranks of one process group make the others wait.

Means: each member works longer outside of calls than the ranks of other groups, such as a pipeline stage with
more layers.
Not when: only one member is late, and the others wait for it in their own calls: then it is slow-rank.
Do: compare the work of this group with that of its sister groups, then what its ranks share.""",
    "slow-communication": """Calls take long once all ranks are there, and no rank works longer than the others.

Means: data move more slowly than in sister groups, or than over 1 Gbit/s. Which link it is, these times do not
show.
Do: read the counters of the links twice, and measure pairs of hosts (`ncclforensics capture`).""",
    "periodic-stalls": """Every n-th step takes much longer.

Means: long steps stand at equal distances. The rank that is the last in most of them is named where chance does
not explain that.
Do: look for what happens as often: garbage collection, data loader workers, logging, evaluation, checkpoints.""",
    "slowed-down": """Since a step all steps take longer.

Means: step lines show that and since when, not which rank. See the rule steps-slower-since.
Do: record 30 steps with torch.profiler on all ranks while it is slow.""",
    "uneven-work": """Ranks take turns in being late: no rank, host or group alone costs much.

Means: the work of a step is not the same on all ranks, as with sequences of unequal length or unequal experts
or stages.
Do: balance the batches by length, or the stages by their time.""",
    "waits-for-host": """The GPUs of all ranks run no kernel in a fifth of a step or more, as none is launched.

Means: when the kernel behind such a gap was launched, the GPU had nothing to do already: the host comes late. What
keeps it, traces of kernels do not show: data loading, garbage collection, a program that waits for values of the GPU
(`.item()`, copies), or many small kernels.
Not when: the profiler itself slows the host, most of all with stacks or shapes; kernels were launched in time and wait
for something else; one rank alone is late (slow-rank).
Do: compare the time of a step without the profiler, and take ten `py-spy dump`s. Then load data ahead, wait for values
less often, capture graphs, or compile. It is no fault of a machine.""",
    "exposed-communication": """All ranks alike spend more than a fifth of a step in transfers
that no computation hides.

Do: overlap calls with computation, make fewer and larger calls, or use less communication. It is no fault of a
machine.""",
    "undecidable": """What is there does not show what makes the job slow, or whether it is.

Means: ranks without a trace, fewer than three ranks or 20 steps, times of calls alone, or a job that stands still,
for which `hang` answers.
Do: what the report says below COLLECT.""",
    "even": """No rank, host or group alone costs more than 2 % of a step.

Not when: the job is slow at other times than those of these traces. Uneven arrival that no rank alone causes is
told beside.""",
}
