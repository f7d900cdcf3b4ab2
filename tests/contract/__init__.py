"""The engines' contract: every engine, stage and degree trains as one plain process does."""
