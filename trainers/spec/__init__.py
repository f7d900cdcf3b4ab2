"""The values shared by all packages: layouts, recipes, measurements and the journal's lines. No torch, no Ray."""
