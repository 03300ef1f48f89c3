"""train → rank → prune → fine-tune.

In: a model, data and what is to be cut. Out: a `Result` with the metric at every stop. `agenda` lays out the stops,
`pruning` walks them, `tuner` trains, `run_folder` makes it all resumable.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
