"""The pre-training methods, one file each: an equation, then code in the same order.

A method is a module class with a `layout` (which rows it reads, how they are masked) and a `forward` that gives
named losses. One file, one line in `METHODS`, one test, one recipe.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from qontext.errors import choose

if TYPE_CHECKING:
    from qontext.pretrain.objectives.base import Objective

METHODS = {
    "mlm": "qontext.pretrain.objectives.mlm:Mlm",
    "condenser": "qontext.pretrain.objectives.condenser:Condenser",
    "cocondenser": "qontext.pretrain.objectives.cocondenser:CoCondenser",
    "cot-mae": "qontext.pretrain.objectives.cot_mae:CotMae",
    "retromae": "qontext.pretrain.objectives.retromae:RetroMae",
}


def method(name: str) -> type[Objective]:
    """The class of a method by its name."""
    module, _, attribute = METHODS[choose(name, METHODS, "method")].partition(":")
    found: type[Objective] = getattr(import_module(module), attribute)
    return found
