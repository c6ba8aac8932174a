"""Save the logs of every node of a Ray cluster where they lie, and judge them together.

    python save-on-ray.py '/tmp/nccl/*.log' saved/
    ncclforensics hang saved/*.ncclf

The first argument is a path or a quoted glob on the nodes, which need ncclforensics; the second a new folder here, for
a run saved earlier would be judged with those of now.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0, max_retries=3)  # no CPU is asked for: the stuck job may hold all of them
def save(logs: str) -> bytes:
    """The saved run of the logs on this node."""
    with TemporaryDirectory() as folder:
        output = Path(folder, "node.ncclf")
        command = [sys.executable, "-m", "ncclforensics", "save", logs, "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True)
        if not output.exists():
            raise RuntimeError(done.stderr.strip())
        return output.read_bytes()


def main(logs: str, folder: str) -> None:
    """Write `NODE.ncclf` for each node, and name those that have none."""
    ray.init(address="auto")
    Path(folder).mkdir()
    nodes = {}
    for node in ray.nodes():
        if node["Alive"]:
            nodes[node["NodeID"]] = node["NodeManagerHostname"]
        else:
            print(f"{node['NodeManagerHostname']}: left the cluster; its logs are missing", file=sys.stderr)
    running = {
        save.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(logs): node_id
        for node_id in nodes
    }
    for future, node_id in running.items():
        try:
            data = ray.get(future)
        except ray.exceptions.RayError as error:
            print(f"{nodes[node_id]}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
            continue
        Path(folder, f"{nodes[node_id]}-{node_id[:8]}.ncclf").write_bytes(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
