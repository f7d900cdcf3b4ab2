"""The processes of a command as a run follows them: one tree on this node, or one on each of several."""

from collections.abc import Mapping
from typing import Protocol

from trainers.commands.processes import CommandProcesses, free_port, out_of
from trainers.commands.steps import Step, StepReader
from trainers.spec.workload import Workload


class Tree(Protocol):
    """The running processes of a command; leave it with `close`."""

    def exit_code(self) -> int | None:
        """Returns the command's exit code, above 128 for a signal; None while it runs."""
        ...

    def memory_gib(self) -> float | None:
        """Returns the GiB that the processes hold now: of the fullest GPU, or together where there is none."""
        ...

    def new_steps(self) -> list[Step]:
        """Returns the steps reported since the last call; raises `StepLineError` for a line that is no step."""
        ...

    def text(self) -> str:
        """Returns its output; with several nodes the output of the first failed node."""
        ...

    def close(self) -> None:
        """Ends all processes and removes their files."""
        ...


class LocalTree:
    """A command on this node."""

    def __init__(
        self,
        workload: Workload,
        values: Mapping[str, object],
        *,
        gpus: int,
        environment: Mapping[str, str | None],
        place: Mapping[str, object] | None = None,
    ) -> None:
        """Starts the command; with several nodes `place` has the values of this node's holes.

        Raises:
            OSError: the command cannot be started.
        """
        scratch = CommandProcesses.new_scratch()
        alone = {"node_rank": 0, "head": "127.0.0.1", "port": free_port()} if place is None else place
        filling = {**values, **alone, "out": out_of(scratch)}
        try:
            self._processes = CommandProcesses(
                workload.filled(filling),
                folder=workload.folder,
                scratch=scratch,
                gpus=gpus,
                environment={**environment, **workload.variables(filling)},
            )
        except OSError as error:
            raise OSError(f"the command cannot be started in {workload.folder}: {error.strerror}") from error
        self._reader = StepReader(file=self._processes.steps, log=self._processes.log, step_line=workload.step_line)

    def exit_code(self) -> int | None:
        return self._processes.exit_code()

    def memory_gib(self) -> float | None:
        return self._processes.memory_gib()

    def new_steps(self) -> list[Step]:
        # Of a script that failed a cut line may be all that it could write.
        return self._reader.last() if self.exit_code() == 0 else self._reader.new()

    def text(self) -> str:
        return self._processes.text()

    def close(self) -> None:
        self._processes.close()
