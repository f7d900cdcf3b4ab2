"""One session of a study, from the options to the exit code, and several in turn for `--gpus 1,2,4`."""
