"""The time of a step by kind of kernel: runs the winner under torch.profiler and sums its trace.

`profiled_steps` runs it on the workers; `trace` reads the Chrome trace that the profiler writes, `marks.kinds` tells
what a piece of it is, `records.sums` adds pieces up. All but `profiled_steps` are pure and import no torch: a kept
trace can be summed again anywhere.
"""
