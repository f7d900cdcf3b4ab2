"""The cluster of a study: joins or starts it, waits for nodes, checks them, and removes what killed drivers left."""
