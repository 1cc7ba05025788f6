#!/usr/bin/env bash
# A training under Slurm that saves before its time is up or it is preempted, and goes on in the next job.
# Usage: sbatch examples/slurm.sh COMMAND...     (the command has to resume the run that it finds)
#        sbatch examples/slurm.sh fieldwatch train splats --data garden --out runs/garden
#        sbatch examples/slurm.sh python train.py
#SBATCH --job-name=fieldwatch
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@180
set -uo pipefail

asked=    # the signal that Slurm has sent
again=    # whether `wait` was interrupted, so that the training may still run
stop() {
    asked=$1
    again=1
    kill -TERM "$training" 2>/dev/null
}

"$@" &
training=$!
# --signal sends USR1 to this script only, 180 s before the end; a preemption sends TERM.
trap 'stop USR1' USR1
trap 'stop TERM' TERM
while :; do
    again=
    wait "$training"
    code=$?
    [ -n "$again" ] || break
done

# Slurm itself requeues a job that it preempts. One whose time is up would end here.
if [ "$asked" = USR1 ] && [ "$code" -ne 0 ]; then
    echo "slurm.sh: the training has saved and stopped ($code): job ${SLURM_JOB_ID:?} goes back to the queue"
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
