"""The results of a probe of the cluster: their storage, lagging devices and nodes, and their display."""
