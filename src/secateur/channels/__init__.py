"""Channels and heads: what can go, what it is worth, and how much goes where.

In: a model, example inputs and an amount or a target. Out: a `Plan`. Begin to read at `dissection`, which lists the
passes in order.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
