"""The cluster of a study: connects to it or starts it, waits for nodes, checks them, and cleans up after killed
drivers.
"""
