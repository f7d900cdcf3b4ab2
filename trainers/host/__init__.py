"""The machine and the process under a trial: a node's facts, what was killed, what hangs, and why a trial ended."""
