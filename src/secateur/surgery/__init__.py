"""The only room that changes a user's weights outside training, and the one that proves the change.

In: a model and a `Plan` or `Masks`. Out: the same model, smaller or with zeros, all or nothing. `proof/` checks a plan
against an independent reference and shares nothing with `couple`.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
