"""A refit is the constrained least-squares solution, computed here from explicit inputs and in another way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor, nn
from torch.func import functional_call, jacfwd

import secateur
from secateur.plans import LayerMask, Masks
from secateur.refit.moments import Moments
from secateur.refit.solving import RIDGES, fit
from tests.refit.layers import PRODUCTS, Case, convolutions


def least_squares(case: Case, x: Tensor, wanted: Tensor, free: Tensor, ridge: float) -> dict[str, Tensor]:
    """By torch.linalg.lstsq, one output after the other. The layer is linear in its parameters: its derivative by them
    is what is read."""
    parameters = {name: parameter.detach() for name, parameter in case.layer.named_parameters()}
    derivative = jacfwd(lambda some: functional_call(case.layer, some, (x,)))(parameters)
    units = [axis % wanted.dim() for axis in case.units]
    order = units + [axis for axis in range(wanted.dim()) if axis not in units]
    size = torch.Size(wanted.shape[axis] for axis in units).numel()
    read = torch.cat([derivative[name].flatten(wanted.dim()) for name in parameters], -1)
    read = read.permute(*order, wanted.dim()).reshape(size, -1, read.shape[-1])
    target = wanted.permute(order).reshape(size, -1)
    start = torch.cat([parameter.flatten() for parameter in parameters.values()])
    allowed = torch.cat([free.flatten() if n == "weight" else torch.ones(p.numel()) for n, p in parameters.items()]) > 0
    solution = start * allowed
    for output in range(size):
        mine = read[output].abs().sum(0) > 0
        hold = ridge * read[output][:, mine].square().sum(0).mean()
        at = (mine & allowed).nonzero().flatten()
        system = torch.cat([read[output][:, at], hold.sqrt() * torch.eye(len(at), dtype=x.dtype)])
        right = torch.cat([target[output], hold.sqrt() * solution[at]])
        if len(at):
            solution[at] = torch.linalg.lstsq(system, right[:, None], driver="gelsd").solution[:, 0]
    parts = solution.split([parameter.numel() for parameter in parameters.values()])
    return {name: part.view(parameters[name].shape) for name, part in zip(parameters, parts, strict=True)}


def assert_refit_is_least_squares(case: Case, examples: int) -> secateur.Repaired:
    layer, x = case.layer, case.inputs(examples)
    assert isinstance(layer.weight, nn.Parameter)
    with torch.no_grad():
        wanted = layer(x)
        pruned = torch.rand_like(layer.weight) < 0.4
        pruned.view(-1)[0], pruned.view(-1)[-1] = True, False
        start = torch.where(pruned, 0, layer.weight)
    solutions = [least_squares(case, x, wanted, ~pruned, ridge) for ridge in RIDGES]
    repaired = secateur.repair(layer, Masks({"weight": LayerMask.pack(pruned)}), [x], progress=False)
    assert not layer.weight[pruned].any()
    if repaired.layers[0].kept:
        assert torch.equal(layer.weight, start)
    else:
        assert min(_distance(layer, solution) for solution in solutions) < 1e-6
    return repaired


def _distance(layer: nn.Module, solution: dict[str, Tensor]) -> float:
    return max(
        float((p.detach() - solution[name]).norm() / solution[name].norm()) for name, p in layer.named_parameters()
    )


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    repaired = assert_refit_is_least_squares(PRODUCTS[name](), 60)
    assert repaired.layers[0].kept == ""


@settings(max_examples=20)
@given(convolutions())
def test_convolutions(case: Case) -> None:
    assume(case.layer.weight.numel() > 1)
    assert_refit_is_least_squares(case, 24)


@pytest.mark.parametrize("layer", [nn.Linear(16, 8).double(), nn.Conv2d(8, 8, 3, groups=2).double()])
@pytest.mark.parametrize("pattern", ["2:4", "4x1"])
def test_patterns_stay(pattern: str, layer: nn.Module) -> None:
    model = nn.Sequential(layer)
    masks = (
        secateur.plan_weights(model, 0.5, pattern=pattern)
        if pattern == "4x1"
        else secateur.plan_weights(model, pattern=pattern)
    )
    x = Case(layer, (16,) if isinstance(layer, nn.Linear) else (8, 5, 5), (1,)).inputs(128)
    repaired = secateur.repair(model, masks, x, progress=False)
    assert repaired.after < repaired.before
    weight = model[0].weight.detach()
    assert torch.equal(weight == 0, masks.layers["0.weight"].pruned())


def moments_of(read: Tensor, wanted: Tensor) -> Moments:
    moments = Moments.empty(torch.zeros(1, wanted.shape[1], read.shape[1], dtype=torch.float64))
    moments.add(read[None], wanted[None])
    return moments


def test_error_and_spread_are_those_of_the_examples() -> None:
    read, wanted, weights = torch.randn(50, 4).double(), torch.randn(50, 3).double() + 1, torch.randn(3, 4).double()
    moments = moments_of(read[:20], wanted[:20]) + moments_of(read[20:], wanted[20:])
    assert moments.count == 50
    assert moments.error(weights[None]) == pytest.approx(float((read @ weights.T - wanted).square().sum()))
    assert moments.spread == pytest.approx(float((wanted - wanted.mean(0)).square().sum()))


def test_outputs_that_never_vary_can_be_fitted() -> None:
    """Their spread is nothing, which rounding makes a little less than nothing."""
    for value in torch.rand(20).double():
        read, wanted = torch.randn(37, 2).double(), value.expand(37, 1)
        read = torch.cat([read, torch.ones(37, 1).double()], 1)
        moments = moments_of(read, wanted)
        found = fit(moments, moments, torch.zeros(1, 1, 3).double(), None)
        torch.testing.assert_close(found.weights[0, 0], torch.tensor([0, 0, value]).double(), atol=1e-6, rtol=0)


def test_inputs_that_are_always_zero_hold_their_weights() -> None:
    read, wanted = torch.randn(30, 4).double(), torch.randn(30, 2).double()
    read[:, 2] = 0
    start = torch.randn(1, 2, 4).double()
    found = fit(moments_of(read[:20], wanted[:20]), moments_of(read[20:], wanted[20:]), start, None)
    torch.testing.assert_close(found.weights[:, :, 2], start[:, :, 2])


def test_numbers_that_are_not_finite_give_weights_that_are_not() -> None:
    read, wanted = torch.randn(30, 4).double(), torch.randn(30, 2).double()
    read[3, 1] = torch.inf
    moments = moments_of(read, wanted)
    assert not fit(moments, moments, torch.zeros(1, 2, 4).double(), None).weights.isfinite().all()
