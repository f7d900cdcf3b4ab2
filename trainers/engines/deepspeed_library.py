"""Imports DeepSpeed for the available devices, silently, and without operations that it would compile at first use."""

import logging
import os
import warnings

import torch

from trainers.startup import import_stubs

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read at import
logging.getLogger("DeepSpeed").setLevel(logging.ERROR)

import deepspeed  # noqa: E402
import deepspeed.ops  # noqa: E402
from deepspeed.runtime import torch_autocast  # noqa: E402
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer  # noqa: E402
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3  # noqa: E402
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer  # noqa: E402
from deepspeed.utils import logger, safe_get_full_fp32_param, safe_set_full_fp32_param  # noqa: E402

__all__ = [
    "BF16_Optimizer",
    "DeepSpeedZeroOptimizer",
    "DeepSpeedZeroOptimizer_Stage3",
    "deepspeed",
    "safe_get_full_fp32_param",
    "safe_set_full_fp32_param",
    "torch_autocast",
]

logger.setLevel(logging.ERROR)
import_stubs.spare_deepspeed()
# torch 2.13 renames the collectives that ZeRO uses, and each call would warn.
warnings.filterwarnings("ignore", r"`torch.distributed.*_tensor` is deprecated", FutureWarning)
if not torch.cuda.is_available():
    # gloo does not need the shared-memory collectives, which DeepSpeed would compile at first use. Reading this
    # dictionary makes DeepSpeed check all operations that it could compile, so it is read only on CPUs.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
