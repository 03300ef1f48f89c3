"""secateur prunes PyTorch models and proves what each cut bought.

A model passes these stops: capture → couple → score → plan → cut → tune → measure. `prune` walks it through them all:

    result = secateur.prune(model, channels=0.5, train_data=train_loader, eval_data=eval_loader, finetune=3)
    print(result)

Each stop can be used alone: `inspect` shows what is coupled, `plan_channels` makes a `Plan` and `plan_weights` makes
`Masks`, `apply` cuts or zeroes, and `hold` keeps zeros in force while your own training loop runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secateur.anatomy import Anatomy as Anatomy
    from secateur.anatomy import inspect as inspect
    from secateur.channel_plan import Plan as Plan
    from secateur.channels import plan_channels as plan_channels
    from secateur.checkpoint.loading import load as load
    from secateur.checkpoint.reading import Checkpoint as Checkpoint
    from secateur.checkpoint.reading import read_checkpoint as read_checkpoint
    from secateur.checkpoint.saving import save as save
    from secateur.enforce import Hold as Hold
    from secateur.enforce import apply as apply
    from secateur.enforce import hold as hold
    from secateur.errors import SecateurError as SecateurError
    from secateur.errors import SecateurWarning as SecateurWarning
    from secateur.errors import UsageError as UsageError
    from secateur.export.exported import Exported as Exported
    from secateur.loop import prune as prune
    from secateur.loop import train as train
    from secateur.masks import Masks as Masks
    from secateur.measure.comparison import Comparison as Comparison
    from secateur.measure.comparison import compare as compare
    from secateur.plan import plan_weights as plan_weights
    from secateur.prove.verify import Proof as Proof
    from secateur.prove.verify import verify as verify
    from secateur.recipe import Recipe as Recipe
    from secateur.report.curve import save_curve as save_curve
    from secateur.result import Result as Result
    from secateur.semi_structured import check_pattern as check_pattern
    from secateur.semi_structured import to_semi_structured as to_semi_structured
    from secateur.sparse.engine import SparseEngine as SparseEngine
    from secateur.sparse.engine import sparse_engine as sparse_engine
    from secateur.sparse.stored.loading import load_engine as load_engine
    from secateur.sparse.stored.saving import save_engine as save_engine

__version__ = "0.1.0"

# Imported on first use: torch takes seconds to load, and `secateur --help` does not need it.
_HOME = {
    "Anatomy": "anatomy",
    "Checkpoint": "checkpoint.reading",
    "Comparison": "measure.comparison",
    "Exported": "export.exported",
    "Hold": "enforce",
    "Masks": "masks",
    "Plan": "channel_plan",
    "Proof": "prove.verify",
    "Recipe": "recipe",
    "Result": "result",
    "SecateurError": "errors",
    "SecateurWarning": "errors",
    "SparseEngine": "sparse.engine",
    "UsageError": "errors",
    "apply": "enforce",
    "check_pattern": "semi_structured",
    "compare": "measure.comparison",
    "hold": "enforce",
    "inspect": "anatomy",
    "load": "checkpoint.loading",
    "load_engine": "sparse.stored.loading",
    "plan_channels": "channels",
    "plan_weights": "plan",
    "prune": "loop",
    "read_checkpoint": "checkpoint.reading",
    "save": "checkpoint.saving",
    "save_curve": "report.curve",
    "save_engine": "sparse.stored.saving",
    "sparse_engine": "sparse.engine",
    "to_semi_structured": "semi_structured",
    "train": "loop",
    "verify": "prove.verify",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'secateur' has no attribute {name!r}")
    value = getattr(import_module(f"secateur.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
