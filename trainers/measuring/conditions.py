"""Records the conditions of a measurement: device, versions, and environment variables that affect it."""

import importlib.metadata
import os
import sys

import torch
import torch.cuda.nccl

from trainers.measuring import warnings_log
from trainers.records.measurement import Conditions
from trainers.spec import engines
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.optional_kernels import packages_of
from trainers.spec.recipe import Recipe

_PACKAGES = ("torch", "transformers", *engines.packages(), "ray")
_PREFIXES = (
    "CUBLAS_",
    "CUDA_DEVICE_MAX",
    "GLOO_",
    "NCCL_",
    "NVIDIA_TF32",
    "OMP_NUM",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TORCH_COMPILE",
    "TORCH_NCCL_",
)


def conditions_of(
    recipe: Recipe, layout: Layout, cluster: Cluster, commit: str, *, engine_lacks: tuple[str, ...] = ()
) -> Conditions:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in (*_PACKAGES, *packages_of(recipe, layout)):
        versions[package] = importlib.metadata.version(package)
    if torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        # The loaded version: a system's cuDNN on LD_LIBRARY_PATH replaces torch's own.
        versions["cudnn"] = str(torch.backends.cudnn.version())
        versions["driver"] = _driver()
    return Conditions(
        device=cluster.device,
        device_memory_gib=cluster.device_memory_gib,
        num_nodes=cluster.num_nodes,
        versions=versions,
        environment=environment() | {"float32_matmul_precision": torch.get_float32_matmul_precision()},
        commit=commit,
        warnings=warnings_log.recorded(),
        engine_lacks=engine_lacks,
    )


def environment() -> dict[str, str]:
    """Returns this process's environment variables that affect measurements."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)}


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # a measurement without the driver's version is better than none
        return "unknown"
