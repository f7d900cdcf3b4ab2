"""How a model is spread over ranks beyond data parallelism: the mesh, tensor, context and pipeline parallelism."""
