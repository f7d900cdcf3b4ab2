"""Measures a step's time by kind of kernel: runs the winner under torch.profiler and sums its trace.

`profiled_steps` runs it on the workers; `trace` reads the profiler's Chrome trace, `marks.kinds` classifies its pieces,
`records.sums` adds them up. All but `profiled_steps` are pure and import no torch, so a stored trace can be summed
again anywhere.
"""
