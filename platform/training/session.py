"""`platform.train` from its options to the exit code."""

import json
import os

from platform.cluster.connection import connected
from platform.common.say import say
from platform.mirror.uri import check_uri, default_uri
from platform.training.ending import summary, tell
from platform.training.folder import TrainingFolder
from platform.training.mlflow_run import TrainingRun
from platform.training.options import TrainOptions
from platform.training.plan import make_plan
from platform.training.promise import Promise
from platform.training.run import Session, Settings, check_layouts
from platform.training.target import Target, read_target
from trainers.values.training import Plan


def train(options: TrainOptions) -> int:
    """Trains, or goes on with the training that the folder holds; the exit code.

    Raises:
        InputError: a mistake of the user's, before any device is touched.
        ClusterError: the cluster is at fault.
    """
    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI") or default_uri(options.studies))
    target = read_target(options.target, options.studies, options.recipe)
    folder = TrainingFolder(options.out.expanduser().absolute() if options.out else target.folder)
    plan = make_plan(options, target, folder.plan())
    with folder.held():
        folder.agree(plan)
        code = 0
        if plan.phase_at(folder.tokens_saved()) is not None:
            most = max(phase.layout.world_size for phase in plan.phases)
            with connected(options.address, cpu_workers=most) as place:
                check_layouts(plan, place.cluster)
                settings = Settings(
                    checkpoint_s=options.checkpoint_s,
                    checkpoint_steps=options.checkpoint_steps,
                    keep=options.keep,
                    promise=_promise(target, plan),
                )
                mirror = TrainingRun(
                    plan, uri=uri, name=folder.path.name, training_id=folder.identity(), records=folder.records
                )
                state = "FAILED"
                try:
                    code = Session(folder, plan, place, settings).run()
                    state = "KILLED" if code else "FINISHED"
                finally:
                    mirror.close(state)
        result = summary(folder, plan)
        if options.json:
            print(json.dumps(result, indent=2))
        else:
            say(tell(folder, result))
        return code


def _promise(target: Target, plan: Plan) -> Promise | None:
    """What the search measured of the one batch point that is trained."""
    if target.tokens_per_s is None or len(plan.phases) > 1 or plan.phases[0].batch != target.batch:
        return None
    return Promise(tokens_per_s=target.tokens_per_s, matmul_tflops=target.matmul_peak_tflops)
