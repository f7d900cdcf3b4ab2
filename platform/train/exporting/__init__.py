"""The parts of `export`: a layout for accelerate, DeepSpeed or torchrun, and its speed there beside this project's."""
