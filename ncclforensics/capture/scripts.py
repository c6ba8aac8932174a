"""Write job scripts that run a capture on several hosts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum

from ncclforensics.errors import UsageError


class Scheduler(StrEnum):
    """Schedulers and launchers for which scripts can be written."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    MPIRUN = "mpirun"
    PALS = "pals"
    FLUX = "flux"


PORT = 29500
SLURM = """\
#!/bin/bash
#SBATCH --job-name=ncclforensics-capture
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={gpus}
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time={minutes}
#SBATCH --output=%x-%j.out

# One task per GPU; every host must see this folder and the program. The tasks inherit LD_LIBRARY_PATH and NCCL_*.
srun --export=ALL --kill-on-bad-exit=0 {command} -o "$PWD/capture-$SLURM_JOB_ID"
"""
MPIRUN = """\
#!/bin/bash
# HOSTS: a file with a line for each of {nodes} hosts; the first one runs rank 0. Every host must see this folder.
HOSTS=${{1:?usage: $0 HOSTFILE}}
export MASTER_ADDR=$(head -n 1 "$HOSTS" | cut -d " " -f 1) MASTER_PORT={port}
# Open MPI passes on only the variables that it is told.
PASSED=$(compgen -e | grep -E '^(NCCL_|CUDA_|UCX_|FI_|LD_LIBRARY_PATH$|PYTHONPATH$|PATH$|MASTER_)' | sed 's/^/-x /')
mpirun --hostfile "$HOSTS" -np {ranks} --map-by ppr:{gpus}:node $PASSED \\
  {command} -o "$PWD/capture-$(date +%Y%m%d-%H%M%S)"
"""
PALS = """\
#!/bin/bash
#PBS -N ncclforensics-capture
#PBS -l select={nodes}:ngpus={gpus}
#PBS -l place=scatter:excl
#PBS -l walltime={seconds}

# One process per GPU, by mpiexec of HPE PALS, which passes on all variables.
cd "$PBS_O_WORKDIR"
export MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE") MASTER_PORT={port}
mpiexec -n {ranks} --ppn {gpus} {command} -o "$PWD/capture-$PBS_JOBID"
"""
FLUX = """\
#!/bin/bash
#flux: --nodes={nodes}
#flux: --exclusive
#flux: --time-limit={minutes}m

# One task per GPU; every host must see this folder and the program.
export MASTER_ADDR=$(flux exec --rank 0 hostname) MASTER_PORT={port}
flux run --nodes {nodes} --ntasks {ranks} --exclusive {command} -o "$PWD/capture-$(date +%Y%m%d-%H%M%S)"
"""
KUBERNETES = """\
apiVersion: v1
kind: Service
metadata: {{name: ncclforensics-capture}}
spec:
  clusterIP: None
  selector: {{job-name: ncclforensics-capture}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: ncclforensics-capture}}
spec:
  completions: {nodes}
  parallelism: {nodes}
  completionMode: Indexed
  backoffLimit: 0
  activeDeadlineSeconds: {seconds}
  template:
    spec:
      subdomain: ncclforensics-capture
      restartPolicy: Never
      containers:
        - name: capture
          image: IMAGE # with ncclforensics[capture] and the NCCL in question
          command: [sh, -c]
          args:
            - >-
              torchrun --no-python --nnodes {nodes} --nproc-per-node {gpus} --node-rank "$JOB_COMPLETION_INDEX"
              --master-addr ncclforensics-capture-0.ncclforensics-capture --master-port {port}
              {command} -o /results/capture
          securityContext: {{capabilities: {{add: [IPC_LOCK]}}}} # RDMA pins memory
          env: [] # - {{name: NCCL_…, value: …}}: those of the jobs in question
          # RDMA_RESOURCE: as the device plugin names it, such as rdma/hca_shared_devices_a; without RDMA remove it.
          resources: {{limits: {{nvidia.com/gpu: {gpus}, RDMA_RESOURCE: 1}}}}
          volumeMounts:
            - {{name: results, mountPath: /results}}
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - {{name: results, persistentVolumeClaim: {{claimName: CLAIM}}}} # all pods must see it
        - {{name: shm, emptyDir: {{medium: Memory}}}}
"""
TEXTS = {
    Scheduler.SLURM: SLURM, Scheduler.KUBERNETES: KUBERNETES, Scheduler.MPIRUN: MPIRUN, Scheduler.PALS: PALS,
    Scheduler.FLUX: FLUX,
}  # fmt: skip
START = 300  # seconds added for pulling images and importing libraries


def job_script(scheduler: Scheduler, nodes: int, gpus: int, limit: float, arguments: Sequence[str]) -> str:
    """Return a script that runs `capture` with these arguments on every GPU of `nodes` hosts.

    Raises UsageError for an argument with a line break or another control character, which ends a line of the script.
    """
    for argument in arguments:
        if not argument.isprintable():
            raise UsageError(f"{argument}: a line break or control character cannot be written into a job script")
    seconds = int(limit) + START
    return TEXTS[scheduler].format(
        nodes=nodes,
        gpus=gpus,
        ranks=nodes * gpus,
        seconds=seconds,
        minutes=-(-seconds // 60),
        port=PORT,
        command=shlex.join(["ncclforensics", "capture", *arguments]),
    )
