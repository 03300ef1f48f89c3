"""Pruning while somebody else's program trains.

In: a model, its optimizer, and what is to be cut when. Out: the same model, pruned on schedule. `training_pruner`
follows any loop by the optimizer's own hook; one thin file for each framework fits it to that framework's callbacks,
checkpoints and loggers. Those files are public: `from secateur.integrations.lightning import PruningCallback`.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
