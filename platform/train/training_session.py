"""`platform.train`, from its options to the exit code."""

import contextlib
import dataclasses
import os
from collections.abc import Generator, Mapping
from pathlib import Path

from platform.cluster.connection import connected
from platform.cluster.leftovers import end_abandoned_sessions
from platform.cluster.nodes import ClusterHandle
from platform.common.errors import InputError
from platform.common.json_form import print_json
from platform.common.output import print_line
from platform.study.folder import user_path
from platform.tracking.uri import check_uri, default_uri
from platform.train.attempts import Attempts, CheckpointSettings, check_layouts
from platform.train.mlflow_run import TrainingRun
from platform.train.promise import Promise
from platform.train.summary import closing_sentence, summary
from platform.train.target import Target, read_target
from platform.train.train_options import TrainOptions
from platform.train.training_folder import TrainingFolder
from platform.train.training_plan import make_plan
from trainers.records.training import TrainingPlan
from trainers.spec.cluster import Cluster


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OpenTraining:
    """A training whose folder this process has locked."""

    folder: TrainingFolder
    plan: TrainingPlan
    settings: CheckpointSettings
    mlflow_uri: str

    @property
    def is_complete(self) -> bool:
        return self.plan.phase_at(self.folder.tokens_saved()) is None


def train(options: TrainOptions) -> int:
    """Begins a training, or resumes the one in the folder; returns the exit code.

    Raises:
        InputError: the user made a mistake; raised before any device is used.
        ClusterError: the cluster is at fault.
    """
    with opened(options) as training:
        code = 0
        if training.is_complete:
            end_abandoned_sessions()  # of a driver killed just before its end: no Ray of this command does
        else:
            largest = max(phase.layout.world_size for phase in training.plan.phases)
            with connected(options.address, cpu_workers=largest) as handle:
                code = train_on(handle, training)
        result = summary(training.folder, training.plan)
        if options.json:
            print_json(result, indent=2)
        else:
            print_line(closing_sentence(training.folder, result))
        return code


@contextlib.contextmanager
def opened(options: TrainOptions) -> Generator[OpenTraining]:
    """Locks the training's folder and yields it with the plan that the options describe.

    Raises:
        InputError: the user made a mistake.
    """
    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI") or default_uri(options.studies))
    target = read_target(options.target, options.studies, options.recipe, trusted=options.trust)
    path = user_path(options.out).absolute() if options.out else target.folder
    folder = TrainingFolder(path, trusted=options.trust)
    plan = make_plan(options, target, folder.plan(), folder.tokens_saved())
    settings = CheckpointSettings(
        checkpoint_s=options.checkpoint_s,
        checkpoint_steps=options.checkpoint_steps,
        keep=options.keep,
        grace_s=options.grace,
        promise=_promise(target, plan),
    )
    with folder.locked():
        folder.write_plan(plan)
        yield OpenTraining(folder=folder, plan=plan, settings=settings, mlflow_uri=uri)


def is_plannable(study: Path, recipe_id: str, tokens: int, cluster: Cluster) -> bool:
    """Returns whether a training of the winner of a study's recipe can be planned on `cluster`; writes nothing."""
    options = TrainOptions(target=str(study), studies=study.parent, recipe=recipe_id, tokens=tokens, trust=True)
    try:
        target = read_target(str(study), study.parent, recipe_id, trusted=True)
        check_layouts(make_plan(options, target, None), cluster)
    except InputError:
        return False
    return True


def train_on(
    handle: ClusterHandle, training: OpenTraining, *, name: str = "", tags: Mapping[str, str] | None = None
) -> int:
    """Trains on the connected cluster and returns the exit code.

    `name` and `tags` are those of the MLflow run; by default it has the folder's name.

    Raises:
        InputError: a layout cannot run there.
        ClusterError: the cluster is at fault.
    """
    check_layouts(training.plan, handle.cluster)
    folder = training.folder
    mirror = TrainingRun(
        training.plan,
        uri=training.mlflow_uri,
        name=name or folder.path.name,
        tags=tags or {},
        training_id=folder.identity(),
        records=folder.records,
    )
    state = "FAILED"
    try:
        code = Attempts(folder, training.plan, handle, training.settings).run()
        state = "KILLED" if code else "FINISHED"
        return code
    finally:
        mirror.close(state)


def _promise(target: Target, plan: TrainingPlan) -> Promise | None:
    """Returns the search's figures for the plan's only batch point; None for several points or if not measured."""
    if target.tokens_per_s is None or [phase.batch for phase in plan.phases] != [target.batch]:
        return None
    return Promise(tokens_per_s=target.tokens_per_s, matmul_tflops=target.matmul_peak_tflops)
