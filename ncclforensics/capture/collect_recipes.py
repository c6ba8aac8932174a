"""Commands that run `collect` on all hosts of a job at once."""

from __future__ import annotations

RECIPES = {
    "srun": (
        "srun --jobid JOB --overlap --ntasks-per-node 1 --kill-on-bad-exit=0 \\\n"
        "  ncclforensics collect -o {folder}/$(hostname) --limit {limit:.0f}"
    ),
    "pdsh": "pdsh -w HOSTS 'ncclforensics collect -o {folder}/$(hostname) --limit {limit:.0f}'",
    "kubectl": (
        "for pod in $(kubectl get pods -l job-name=JOB -o name); do\n"
        "  kubectl exec $pod -- ncclforensics collect -o /tmp/collected --limit {limit:.0f} &\n"
        "done; wait\n"
        "for pod in $(kubectl get pods -l job-name=JOB -o name); do\n"
        "  kubectl cp ${{pod#*/}}:/tmp/collected {folder}/${{pod#*/}}\n"
        "done"
    ),
}


def recipe(launcher: str, folder: str, limit: float) -> str:
    """Return the commands for one launcher, and the one that reads what they leave."""
    return RECIPES[launcher].format(folder=folder, limit=limit) + f"\nncclforensics hang {folder}\n"
