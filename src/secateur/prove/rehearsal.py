"""A rehearsal: the cut model runs once on stand-ins for its weights, before anything is cut."""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call

from secateur.capture.attributes import unchanged, write_attributes
from secateur.capture.forward import plain_execution, tensors_in, without_random_effects
from secateur.channel_plan import Plan
from secateur.cut import named_tensors, require_fit
from secateur.example_inputs import as_call, copied
from secateur.modes import evaluating
from secateur.prove.verify import ProofFailed
from secateur.weights import unwrap

__all__ = ["is_cheap_to_prove", "rehearse"]

_CHEAP_PARAMETERS = 5_000_000
_CHEAP_MACS = 500_000_000


def is_cheap_to_prove(model: nn.Module, plan: Plan) -> bool:
    """Whether a proof takes less than about a second and a few times 5 million numbers of memory."""
    on_meta = any(parameter.device.type == "meta" for parameter in model.parameters())
    return not on_meta and plan.parameters[0] <= _CHEAP_PARAMETERS and plan.macs[0] <= _CHEAP_MACS


def rehearse(model: nn.Module, plan: Plan) -> None:
    """Refuses a plan with which the code would not run, or would give outputs of another shape.

    Each cut weight is played by a single number, expanded to the new shape: that needs no memory, and the time of one
    pass of the cut model. Weights on the meta device have nothing to run with, and where the data decides what is
    computed, stand-ins say nothing.
    """
    module = unwrap(model)
    tensors = named_tensors(module)
    require_fit(module, tensors, plan)
    if not plan.output_shapes or any(tensor.device.type == "meta" for tensor in tensors.values()):
        return
    stand_ins = {name: _stand_in(tensors[name], cut.new_shape) for name, cut in plan.tensors.items()}
    by_identity = {id(tensors[name]): stand_in for name, stand_in in stand_ins.items()}
    every_name = {name: by_identity[id(tensor)] for name, tensor in tensors.items() if id(tensor) in by_identity}
    args, kwargs = copied(*as_call(plan.example_inputs))
    with evaluating(module), unchanged(module), without_random_effects(), plain_execution():
        write_attributes(module, {key: new for key, (_, new) in plan.attributes.items()})
        try:
            out = functional_call(module, every_name, args, kwargs, tie_weights=False)
        except Exception as error:
            raise ProofFailed(
                f"The cut model would not run ({type(error).__name__}: {error}); nothing was cut. "
                "Leave the layer out with keep=[…], and tell us about the model."
            ) from error
    shapes = tuple(tuple(tensor.shape) for tensor in tensors_in(out))
    if shapes != plan.output_shapes:
        raise ProofFailed(
            f"The cut model would give outputs of shapes {shapes} instead of {plan.output_shapes}; nothing was cut."
        )


def _stand_in(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor.detach().new_full((1,) * len(shape), 0.01).expand(shape)
