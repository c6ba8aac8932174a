#!/usr/bin/env bash
# Save the logs of a stuck Slurm job on each of its nodes, and judge them together:
#
#     slurm-save.sh JOBID '/tmp/nccl/*.log' /shared/saved
#
# The logs lie on the local disks of the nodes; $SLURMD_NODENAME in their path is the name of each node. --overlap starts
# the step beside the one that hangs, on the processors that this one holds. NCCLFORENSICS names the program where it is
# not on PATH.
set -eu
job=${1:?job} logs=${2:?logs} saved=${3:?folder}
program=${NCCLFORENSICS:-ncclforensics}

mkdir -p "$saved"
# A node without logs fails by itself: the others go on.
srun --jobid="$job" --nodes="$(squeue --noheader --jobs="$job" --format=%D)" --ntasks-per-node=1 \
    --overlap --kill-on-bad-exit=0 --label \
    bash -c "$program save \"$logs\" -o \"$saved/\$SLURMD_NODENAME.ncclf\"" || true
exec "$program" hang "$saved"/*.ncclf
