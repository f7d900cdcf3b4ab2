"""The values in which a training is stated: model, recipe, layout, batch and cluster, and the rules of what may run.

No torch, no Ray. Every other package imports it; it imports none of them.
"""
