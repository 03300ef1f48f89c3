"""secateur prunes PyTorch models and proves what each cut bought.

A model takes these steps: capture → couple → score → plan → cut → tune → measure. `prune` walks it through them all:

    result = secateur.prune(model, channels=0.5, train_data=train_loader, eval_data=eval_loader, finetune=3)
    print(result)

Each step can be used alone: `inspect` shows what is coupled, `plan_channels` makes a `Plan` and `plan_weights` makes
`Masks`, `apply` cuts or zeroes, and `hold` keeps zeros in force while your own training loop runs.
"""

from secateur.base.doors import front_door

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
