"""The engines' contract: every engine, stage and degree trains like one plain process."""
