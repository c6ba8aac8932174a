#!/usr/bin/env bash
# Save the logs of a stuck Slurm job on each of its nodes, and judge them together:
#
#     slurm-save.sh JOBID '/tmp/nccl/*.log' /shared/saved
#
# The logs lie on the local disks of the nodes; $SLURMD_NODENAME in their path is the name of each node. --overlap starts
# the step beside the one that hangs, on the processors that this one holds. NCCLFORENSICS names the program where it is
# not on PATH. The folder must be new: a run saved earlier would be judged with those of now.
set -eu
job=${1:?job} logs=${2:?logs} saved=${3:?folder}
program=${NCCLFORENSICS:-ncclforensics}

# srun cancels the saves of all nodes where it cannot reach one; Slurm marks such a node after the first try.
of_job=$(squeue --noheader --jobs="$job" --format=%N)
answering=$(sinfo --noheader --Node --responding --nodes="$of_job" --format=%N | sort -u | paste -sd, -)
sinfo --noheader --Node --dead --nodes="$of_job" --format='%N does not answer: its logs are missing' | sort -u >&2

mkdir -p "$(dirname "$saved")"
mkdir "$saved"
# A node without logs fails by itself: the others go on.
srun --jobid="$job" --nodelist="$answering" --nodes="$(tr , '\n' <<<"$answering" | wc -l)" --ntasks-per-node=1 \
    --overlap --kill-on-bad-exit=0 --label \
    bash -c "$program save \"$logs\" -o \"$saved/\$SLURMD_NODENAME.ncclf\"" || true
exec "$program" hang "$saved"/*.ncclf
