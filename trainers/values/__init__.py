"""The values that every floor speaks in: layouts, recipes, measurements and the journal's lines. No torch, no Ray."""
