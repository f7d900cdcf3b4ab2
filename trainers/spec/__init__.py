"""Frozen values that describe a training (model, recipe, layout, batch, cluster), and the rules of which trainings may
run. Imports no torch, no Ray and no other package of this project.
"""
