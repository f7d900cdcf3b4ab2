"""The parts of `export`: a layout for accelerate, DeepSpeed or torchrun, and its speed compared with this project's."""
