"""Encoders to train: those that the tests of models make."""

from tests.models.conftest import bert, checkpoint

__all__ = ["bert", "checkpoint"]
