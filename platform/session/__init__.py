"""One session of a study, from the options to the exit code; and one after another for `--gpus 1,2,4`."""
