"""A store and a server of MLflow, as the mirror's own tests have them."""

from tests.tracking.conftest import closed_port, no_user_settings, serve, store, studies

__all__ = ["closed_port", "no_user_settings", "serve", "store", "studies"]
