"""Names of a step's parts: phases as an engine marks them, ranges and kinds in a profiler's trace."""
