#!/usr/bin/env bash
# EpilogSlurmctld of Slurm (slurm.conf): judge the NCCL logs of every job that ended, keep a page where there is something to
# see, and remember the job, healthy or not, so that `ncclforensics history show` names the hosts that return.
# The exit code of the job does not say whether it hung: a job that reached its time limit may end with 0.
# NCCL_LOGS is the folder in which each job has a folder of its own, as in NCCL_DEBUG_FILE=/shared/nccl/$SLURM_JOB_ID/%h.%p.log
# An epilog must not fail: whatever happens, this ends with 0.
set -u
folder="${NCCL_LOGS:-/shared/nccl}"
logs="$folder/${SLURM_JOB_ID:?}"
[ -d "$logs" ] || exit 0

umask 077
verdict="$logs.verdict.json"
timeout 300 ncclforensics hang "$logs" --quiet --format json -o "$verdict"
case $? in
1) timeout 300 ncclforensics report "$logs" --quiet -o "$logs.html"
   logger -t ncclforensics "job $SLURM_JOB_ID: findings, see $logs.html" ;;
4) logger -t ncclforensics "job $SLURM_JOB_ID: the analyzer itself failed" ;;
esac
timeout 600 ncclforensics history add "$logs" --db "${NCCLFORENSICS_HISTORY:-$folder/history.db}" --quiet
exit 0
