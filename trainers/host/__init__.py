"""The machine and the process under a trial: a node's facts, killed processes, hangs, and why a trial ended."""
