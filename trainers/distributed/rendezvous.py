"""Rendezvous of a trial's ranks: over the network between hosts, through a file on a single host.

torch's TCPStore listens on every address of its host, whatever address it is given. Anybody who reaches its port can
write into it, and ranks unpickle its contents. So ranks on a single host use no network: they meet in a folder that
only this user can open, and gloo and NCCL use only the loopback interface.
"""

import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import (
    _set_torch_distributed_env_vars,  # pyright: ignore[reportPrivateUsage]
    _setup_torch_process_group,  # pyright: ignore[reportPrivateUsage]
    _TorchBackend,  # pyright: ignore[reportPrivateUsage]
)

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""Name of the loopback interface, which no other host can reach."""
_REMOVED_S = 5.0


def process_group(*, on_cuda: bool, timeout_s: int, folder: str = "") -> TorchConfig:
    """Returns the configuration from which Train makes its workers' process group; operations may take `timeout_s`
    seconds. Ranks on a single host meet in a new folder in `folder`, or in the temporary folder if `folder` is missing
    there.
    """
    return _Meeting(backend="nccl" if on_cuda else "gloo", timeout_s=timeout_s, folder=folder)


@dataclasses.dataclass
class _Meeting(TorchConfig):
    folder: str = ""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return _MeetingBackend


class _MeetingBackend(_TorchBackend):
    """Uses Ray's backend for workers on several hosts, and a file otherwise. The imports above are private names of
    Ray; this module's import fails with a release that lacks them.
    """

    _meeting = ""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        assert isinstance(backend_config, _Meeting)
        if len(set(worker_group.execute(_node))) > 1:
            super().on_start(worker_group, backend_config)
            return
        self._meeting = worker_group.execute_single(0, _make_folder, backend_config.folder)
        worker_group.execute(_stay_on_host)
        worker_group.execute(_set_torch_distributed_env_vars)
        options = {
            "backend": backend_config.backend,
            "world_size": len(worker_group),
            "init_method": f"file://{self._meeting}/store",
            "timeout_s": backend_config.timeout_s,
        }
        ranks = range(len(worker_group))
        ray.get(
            [
                worker_group.execute_single_async(rank, _setup_torch_process_group, world_rank=rank, **options)
                for rank in ranks
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        super().on_shutdown(worker_group, backend_config)
        if self._meeting:
            # A worker may have died; the folder is removed with the search's others.
            with contextlib.suppress(Exception):
                ray.get(worker_group.execute_single_async(0, _remove_folder, self._meeting), timeout=_REMOVED_S)


def _node() -> str:
    return ray.get_runtime_context().get_node_id()


def _make_folder(folder: str) -> str:
    """Creates a folder that other users cannot open, on the host of rank 0; returns its path."""
    return tempfile.mkdtemp(prefix="ranks-", dir=folder if folder and os.access(folder, os.W_OK) else None)


def _remove_folder(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _stay_on_host() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    os.environ["NCCL_SOCKET_IFNAME"] = f"={LOOPBACK}"  # NCCL takes a bare name as a prefix
