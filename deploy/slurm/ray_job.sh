# For search.sbatch and train.sbatch, which source this in the checkout: a Ray on the job's nodes, and one command on it.
#
#     run_on_ray WHAT COMMAND...      # WHAT is said where the job's time ends; returns the command's exit code

# The batch script runs on the first node. Its address is the name's, or where no name service knows it the first it has.
addresses=$({ getent ahostsv4 "$SLURMD_NODENAME" || true; hostname -I | tr ' ' '\n'; } | grep -Eo '^[0-9.]+' || true)
address=$(awk '!/^127\./ && !found++' <<<"$addresses")
: "${address:?this node has no IPv4 address}"

export RAY_ADDRESS=$address:6379
export RAY_AUTH_MODE=token
export RAY_worker_niceness=0                                    # else any other busy process takes the workers' cores
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')   # of this job alone; srun hands it to the nodes
export RAY_AUTH_TOKEN
export RAY_TMPDIR=/tmp/search-$SLURM_JOB_ID                     # on each node: /tmp/ray may be another user's
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=900
export RAY_USAGE_STATS_ENABLED=0                                # compute nodes have no way out
export LAYOUT_SEARCH_NODES=$SLURM_JOB_NUM_NODES
((${SLURM_GPUS_ON_NODE:-0})) && LAYOUT_SEARCH_NODES+=x$SLURM_GPUS_ON_NODE
export STUDIES=${STUDIES:-$PWD/studies}      # on a shared file system whose locks hold, or local with --copy-to
mkdir -p "$STUDIES"
# Anew on each node, for this user alone: a job that is requeued has its old one, and another user may have made it.
srun --ntasks-per-node=1 bash -c 'rm -rf "$RAY_TMPDIR"; mkdir -m 700 "$RAY_TMPDIR"' ||
    { echo "error: the folder $RAY_TMPDIR cannot be made on each node" >&2; exit 1; }
# SQLite does not go with network file systems: without a server, MLflow's database ends with the job.
export MLFLOW_TRACKING_URI=${MLFLOW_TRACKING_URI:-sqlite:///$RAY_TMPDIR/mlflow.db}

# The command runs on this node, below srun. Its process id is written down, since it alone may get the signal: Ray must
# live until it has let go of it.
run_on_ray() {
    local what=$1 step code=0
    shift
    srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none --kill-on-bad-exit=0 \
        ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" \
        --num-cpus "$SLURM_CPUS_ON_NODE" --disable-usage-stats -- \
        bash -c 'echo $$ >"$RAY_TMPDIR/command.pid"; exec "$@"' command "$@" &
    step=$!
    trap "interrupt '$what' $step" TERM
    while kill -0 "$step" 2>/dev/null; do
        code=0
        wait "$step" || code=$?          # a trap ends one wait; the step goes on
    done
    timeout 60 srun --ntasks-per-node=1 rm -rf "$RAY_TMPDIR" || true
    return "$code"
}

interrupt() {
    echo "The job's time is nearly over, or it is preempted: the $1 ends. The same sbatch line goes on with it."
    kill -TERM "$(cat "$RAY_TMPDIR/command.pid")" 2>/dev/null || kill -TERM "$2"
}
