"""One session of a study from options to exit code, and several for `--gpus 1,2,4`."""
