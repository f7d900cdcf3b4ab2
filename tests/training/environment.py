"""The environment of a training that a test starts as a separate process."""

import os

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))},
    "CUDA_VISIBLE_DEVICES": "",  # CPU workers, on machines with GPUs too
    "OMP_NUM_THREADS": "1",
}
