"""The fixture of the tests of models that makes small targets."""

from tests.models.conftest import save_model

__all__ = ["save_model"]
