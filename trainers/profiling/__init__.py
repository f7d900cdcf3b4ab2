"""The time of a step by kind of kernel: runs the winner under torch.profiler and sums its trace.

`run` runs it on the workers; `trace` reads the Chrome trace that the profiler writes, `kinds` tells what a piece of it
is, `sums` adds pieces up. All but `run` are pure and import no torch: a kept trace can be summed again anywhere.
"""
