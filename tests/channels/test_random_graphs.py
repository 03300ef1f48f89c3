"""Random programs: whatever operators meet, a plan is either refused or exact.

A program is a list of numbers. Each makes one block, such as a grouped convolution, a gate or an attention, that reads
earlier results; all results are images of 4 by 4 with some number of channels. The last ones are pooled and classified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import secateur

SIDE = 4
MOST_CHANNELS = 48
Function = Callable[..., Tensor]


class Block(nn.Module):
    """A function of earlier results, with layers and sizes of its own."""

    def __init__(self, function: Function, *layers: nn.Module | nn.Parameter, **sizes: int) -> None:
        super().__init__()
        self.function = function
        for i, layer in enumerate(layers):
            setattr(self, f"layer{i}", layer)
        for name, size in sizes.items():
            setattr(self, name, size)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


class Program(nn.Module):
    def __init__(self, blocks: list[Block], sources: list[tuple[str, ...]], channels: list[int]) -> None:
        super().__init__()
        self.blocks, self.sources = nn.ModuleList(blocks), sources
        self.last = nn.Linear(channels[-1] + channels[-2], 3)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for block, sources in zip(self.blocks, self.sources, strict=True):
            values.append(block(*(values[int(i)] for i in sources)))
        return self.last(torch.cat(values[-2:], 1).mean((2, 3)))


@dataclass(frozen=True)
class Choice:
    """What a block may choose by: the channels of two earlier results, and a number."""

    c: int
    d: int
    number: int

    def one_of(self, *options: Any) -> Any:
        return options[self.number % len(options)]

    def groups(self) -> int:
        """A number that divides the channels."""
        return self.one_of(*(g for g in (2, 4, 3, 1) if self.c % g == 0))


@dataclass(frozen=True)
class Made:
    block: Block
    channels: int
    inputs: int = 1


Maker = Callable[[Choice], Made | None]
MAKERS: dict[str, Maker] = {}


def block(maker: Maker) -> Maker:
    MAKERS[maker.__name__] = maker
    return maker


# -- layers


@block
def convolution(choose: Choice) -> Made:
    out = choose.one_of(8, 12, 16)
    return Made(Block(lambda m, x: m.layer0(x), nn.Conv2d(choose.c, out, choose.one_of(1, 3), padding="same")), out)


@block
def grouped_convolution(choose: Choice) -> Made:
    groups = choose.groups()
    out = groups * choose.one_of(4, 2, 8)
    return Made(Block(lambda m, x: m.layer0(x), nn.Conv2d(choose.c, out, 3, padding=1, groups=groups)), out)


@block
def depthwise_convolution(choose: Choice) -> Made:
    out = choose.c * choose.one_of(1, 1, 2)
    return Made(Block(lambda m, x: m.layer0(x), nn.Conv2d(choose.c, out, 3, padding=1, groups=choose.c)), out)


@block
def transposed_convolution(choose: Choice) -> Made:
    groups = choose.one_of(1, choose.groups())
    out = groups * 4
    layer = nn.ConvTranspose2d(choose.c, out, 3, padding=1, groups=groups)
    return Made(Block(lambda m, x: m.layer0(x), layer), out)


@block
def linear(choose: Choice) -> Made:
    out = choose.one_of(8, 12, 20)
    return Made(Block(lambda m, x: m.layer0(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.Linear(choose.c, out)), out)


@block
def bottleneck(choose: Choice) -> Made:
    """A residual branch, with a norm before or after."""
    layers = nn.Conv2d(choose.c, 8, 1), nn.Conv2d(8, choose.c, 3, padding=1), nn.BatchNorm2d(choose.one_of(8, choose.c))
    if choose.one_of(8, choose.c) == 8:
        return Made(Block(lambda m, x: x + m.layer1(F.relu(m.layer2(m.layer0(x)))), *layers), choose.c)
    return Made(Block(lambda m, x: x + m.layer1(F.silu(m.layer0(m.layer2(x)))), *layers), choose.c)


@block
def norm(choose: Choice) -> Made:
    kinds = [
        nn.BatchNorm2d,
        nn.InstanceNorm2d,
        lambda n: nn.GroupNorm(choose.groups(), n),
        lambda n: nn.GroupNorm(1, n),
    ]
    return Made(Block(lambda m, x: m.layer0(x), choose.one_of(*kinds)(choose.c)), choose.c)


@block
def layer_norm(choose: Choice) -> Made:
    layer = choose.one_of(nn.LayerNorm, nn.RMSNorm)(choose.c)
    return Made(Block(lambda m, x: m.layer0(x.flatten(2).mT).mT.unflatten(2, (SIDE, SIDE)), layer), choose.c)


@block
def activation(choose: Choice) -> Made:
    function = choose.one_of(nn.PReLU, F.relu, F.gelu, F.hardswish, torch.tanh, lambda x: x.clamp(-1, 1))
    if function is nn.PReLU:
        return Made(Block(lambda m, x: m.layer0(x), nn.PReLU(choose.c)), choose.c)
    return Made(Block(lambda m, x: function(x)), choose.c)


@block
def scale(choose: Choice) -> Made:
    weight = nn.Parameter(torch.rand(choose.c, 1, 1) + 0.5)
    function: Function = choose.one_of(lambda m, x: m.layer0 * x, lambda m, x: x + m.layer0.expand(x.shape[1:]))
    return Made(Block(function, weight), choose.c)


# -- several inputs


@block
def add(choose: Choice) -> Made | None:
    function: Function = choose.one_of(
        lambda m, x, y: x + y,
        lambda m, x, y: x * y.sigmoid(),
        lambda m, x, y: torch.stack([x, y]).amax(0),
        lambda m, x, y: torch.maximum(x, y),
        lambda m, x, y: torch.where(x > 0, x, y),
    )
    return Made(Block(function), choose.c, 2) if choose.c == choose.d else None


@block
def projected_shortcut(choose: Choice) -> Made:
    return Made(Block(lambda m, x, y: x + m.layer0(y), nn.Conv2d(choose.d, choose.c, 1, bias=False)), choose.c, 2)


@block
def concatenation(choose: Choice) -> Made:
    return Made(Block(lambda m, x, y: torch.cat([x, y], 1)), choose.c + choose.d, 2)


@block
def interleaving(choose: Choice) -> Made | None:
    d: int = choose.one_of(1, 2)
    return (
        Made(Block(lambda m, x, y: torch.stack([x, y], d).flatten(1, 2)), 2 * choose.c, 2)
        if choose.c == choose.d
        else None
    )


@block
def cross_products(choose: Choice) -> Made:
    """Each channel of one against each of the other, over space; then a layer reads the table."""
    function: Function = choose.one_of(
        lambda m, x, y: m.layer0(torch.einsum("bcij,bdij->bcd", x, y)).sum(1)[..., None, None] + 0 * x[:, :1],
        lambda m, x, y: m.layer0(x.flatten(2) @ y.flatten(2).mT).amax(1)[..., None, None] + 0 * x[:, :1],
    )
    return Made(Block(function, nn.Linear(choose.d, 8)), 8, 2)


# -- pieces


@block
def halves(choose: Choice) -> Made | None:
    if choose.c % 2:
        return None
    half = choose.c // 2
    function, out = choose.one_of(
        (lambda m, x: torch.mul(*x.chunk(2, 1)), half),
        (lambda m, x: torch.cat(x.chunk(2, 1)[::-1], 1), choose.c),
        (lambda m, x: torch.cat([x[:, m.at :], x[:, : m.at].exp()], 1), choose.c),
        (lambda m, x: F.glu(x, 1), half),
        (lambda m, x: x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :].relu(), half),
        (lambda m, x: torch.cat([x[:, : m.at], x[:, m.at :].tanh()], 1), choose.c),
        (lambda m, x: torch.add(*x.split(m.at, 1)), half),
        (lambda m, x: x[:, ::2] * x[:, 1::2], half),
        (lambda m, x: x.roll(m.at, 1), choose.c),
        (lambda m, x: x.narrow(1, 0, m.at) - x.narrow(1, m.at, m.at), half),
    )
    return Made(Block(function, at=half), out)


@block
def unequal_parts(choose: Choice) -> Made | None:
    if choose.c < 8:
        return None
    sizes = {"a": 4, "b": choose.c - 4}
    function, out = choose.one_of(
        (lambda m, x: torch.cat(x.split([m.a, m.b], 1)[::-1], 1), choose.c),
        (lambda m, x: x[:, m.a :], choose.c - 4),
        (lambda m, x: x[:, : -m.a], choose.c - 4),
        (lambda m, x: torch.cat([x[:, 4:], x[:, :4]], 1), choose.c),
        (lambda m, x: x[:, 2:6], 4),
        (lambda m, x: x + x[:, 3:4], choose.c),
    )
    return Made(Block(function, **sizes), out)


@block
def groups_of_channels(choose: Choice) -> Made | None:
    """Reshaped to groups, and something done to them."""
    g = choose.groups()
    function, out = choose.one_of(
        (lambda m, x: x.unflatten(1, (m.g, -1)).transpose(1, 2).flatten(1, 2), choose.c),
        (lambda m, x: x.unflatten(1, (m.g, -1)).softmax(1).flatten(1, 2), choose.c),
        (lambda m, x: x.unflatten(1, (-1, m.g)).softmax(2).flatten(1, 2), choose.c),
        (lambda m, x: x.reshape(x.shape[0], m.g, x.shape[1] // m.g, SIDE, SIDE).mean(1), choose.c // g),
        (lambda m, x: x.reshape(x.shape[0], m.g, -1, SIDE, SIDE).amax(2), g),
        (lambda m, x: F.channel_shuffle(x, m.g), choose.c),
        (lambda m, x: x.unflatten(1, (m.g, -1)).flip(1).flatten(1, 2), choose.c),
        (lambda m, x: x.view(x.shape[0], m.g, -1, SIDE, SIDE).unbind(1)[0], choose.c // g),
    )
    return Made(Block(function, g=g), out) if out > 1 else None


@block
def order(choose: Choice) -> Made:
    function: Function = choose.one_of(
        lambda m, x: x.flip(1),
        lambda m, x: x + x.flip(1),
        lambda m, x: x.roll(2, 1),
        lambda m, x: x.roll(-1, 1),
        lambda m, x: x.roll((1, 1), (2, 3)),
        lambda m, x: x.flip(2, 3),
        lambda m, x: x.mT.contiguous(),
        lambda m, x: x.cumsum(1),
    )
    return Made(Block(function), choose.c)


@block
def more_channels(choose: Choice) -> Made:
    function, out = choose.one_of(
        (lambda m, x: F.pad(x, (0, 0, 0, 0, 1, 3)), choose.c + 4),
        (lambda m, x: x.repeat_interleave(2, 1), 2 * choose.c),
        (lambda m, x: torch.cat([x, x.relu()], 1), 2 * choose.c),
        (lambda m, x: torch.cat([x, torch.zeros_like(x[:, :2])], 1), choose.c + 2),
        (lambda m, x: torch.cat([x, x.new_ones(x.shape[0], 2, SIDE, SIDE)], 1), choose.c + 2),
        (lambda m, x: x.repeat(1, 2, 1, 1), 2 * choose.c),
    )
    return Made(Block(function), out)


@block
def space(choose: Choice) -> Made | None:
    function, out = choose.one_of(
        (lambda m, x: F.max_pool2d(x, 3, 1, 1), choose.c),
        (lambda m, x: F.avg_pool2d(x, 3, 1, 1), choose.c),
        (lambda m, x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2), choose.c),
        (lambda m, x: F.interpolate(F.pixel_unshuffle(x, 2), scale_factor=2), 4 * choose.c),
        (lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect")[:, :, 1:-1, :-2], choose.c),
        (lambda m, x: x[:, :, [1, 0, 3, 2]], choose.c),
        (lambda m, x: F.avg_pool2d(F.pixel_shuffle(x, 2), 2), choose.c // 4),
    )
    return Made(Block(function), out) if out > 1 and (choose.number % 7 != 6 or choose.c % 4 == 0) else None


# -- statistics and attention


@block
def statistics(choose: Choice) -> Made:
    function: Function = choose.one_of(
        lambda m, x: x.softmax(1),
        lambda m, x: x * x.softmax(1).amax((2, 3), keepdim=True),
        lambda m, x: x - x.mean(1, keepdim=True),
        lambda m, x: x * x.std((1, 2, 3), keepdim=True),
        lambda m, x: F.normalize(x, dim=1),
        lambda m, x: x + x.mean(1, keepdim=True).expand(-1, x.shape[1], -1, -1),
        lambda m, x: x * x.flatten(2).softmax(-1).unflatten(2, (SIDE, SIDE)),
    )
    return Made(Block(function), choose.c)


@block
def squeeze_and_excite(choose: Choice) -> Made:
    layers = nn.Linear(choose.c, 4), nn.Linear(4, choose.c)
    return Made(
        Block(lambda m, x: x * m.layer1(m.layer0(x.mean((2, 3))).relu()).sigmoid()[:, :, None, None], *layers), choose.c
    )


@block
def einsum(choose: Choice) -> Made:
    weight = nn.Parameter(torch.randn(choose.c, 12))
    function: Function = choose.one_of(
        lambda m, x: torch.einsum("bchw,cd->bdhw", x, m.layer0),
        lambda m, x: (x.permute(0, 2, 3, 1) @ m.layer0).permute(0, 3, 1, 2),
    )
    return Made(Block(function, weight), 12)


def attend(m: Any, x: Tensor) -> Tensor:
    """Attention over places: `kind` says how the heads are made."""
    tokens = x.flatten(2).mT
    query, key, value = m.layer0(tokens).chunk(3, -1)
    if m.kind > 0:  # a float, which is no size
        heads = [each.unflatten(-1, (m.heads, -1)).transpose(1, 2) for each in (query, key, value)]
    else:
        heads = [each.unflatten(-1, (-1, m.width)).transpose(1, 2) for each in (query, key, value)]
    if abs(m.kind) > 1:
        out = F.scaled_dot_product_attention(*heads)
    else:
        out = (heads[0] @ heads[1].mT * 0.4).softmax(-1) @ heads[2]
    return m.layer1(out.transpose(1, 2).flatten(2)).mT.unflatten(2, (SIDE, SIDE))


@block
def attention(choose: Choice) -> Made:
    layers = nn.Linear(choose.c, 48), nn.Linear(16, choose.c)
    made = Block(attend, *layers, heads=4, width=4)
    made.kind = choose.one_of(1.0, -1.0, 2.0, -2.0)
    return Made(made, choose.c)


@block
def attention_over_channels(choose: Choice) -> Made:
    def function(m: Any, x: Tensor) -> Tensor:
        query, key, value = (layer(x).flatten(2) for layer in (m.layer0, m.layer1, m.layer2))
        return ((query @ key.mT).softmax(-1) @ value).unflatten(2, (SIDE, SIDE))

    return Made(Block(function, *(nn.Conv2d(choose.c, n, 1) for n in (12, 8, 8))), 12)


# -- programs

Step = tuple[int, int, int, int]
STEPS = st.lists(
    st.tuples(st.integers(0, len(MAKERS) - 1), *[st.integers(0, 1 << 12)] * 3),
    min_size=2,
    max_size=8,
)


def program(steps: list[Step]) -> Program:
    """Interprets the numbers; a step that does not fit what there is makes nothing."""
    torch.manual_seed(len(steps))
    blocks: list[Block] = []
    sources: list[tuple[str, ...]] = []
    channels = [3]
    makers = list(MAKERS.values())
    for maker, numbers in [(convolution, (0, 0, 0)), *((makers[i], rest) for i, *rest in steps)]:
        latest = range(len(channels) - 1, 0 if blocks else -1, -1)
        chosen = [latest[numbers[0] % min(3, len(latest))], latest[numbers[1] % len(latest)]]
        made = maker(Choice(channels[chosen[0]], channels[chosen[1]], numbers[2]))
        if made is not None and made.channels <= MOST_CHANNELS:
            blocks.append(made.block)
            sources.append(tuple(str(i) for i in chosen[: made.inputs]))
            channels.append(made.channels)
    return Program(blocks, sources, channels).eval()


def outcome(model: nn.Module, x: Tensor, amount: float, scope: Any) -> str:
    """Raises where a plan is made that is not exact, or that is refused for any other reason than these two."""
    try:
        plan = secateur.plan_channels(model, x, amount, scope=scope)
    except secateur.UsageError as error:
        if "can be cut" in str(error) or "too small" in str(error):
            return "refused"
        raise
    secateur.verify(model, plan)
    return "cut"


def test_a_random_program_is_refused_or_cut_exactly() -> None:
    tally: Counter[str] = Counter()

    @settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
    @given(STEPS, st.sampled_from([0.2, 0.34, 0.5, 0.75, 0.9]), st.sampled_from(["layer", "global"]))
    def each(steps: list[Step], amount: float, scope: Any) -> None:
        tally[outcome(program(steps), torch.randn(2, 3, SIDE, SIDE), amount, scope)] += 1

    each()
    assert tally["cut"] > 4 * tally["refused"]  # or the test says little


def forms(maker: int) -> list[Program]:
    """The programs of one such block, whatever its number; most kinds have fewer forms than there are numbers."""
    found: dict[Any, Program] = {}
    for number in range(10):
        made = program([(maker, 0, 0, number)])
        found.setdefault((str(made), *map(own_form, made.blocks)), made)
    return list(found.values())


def own_form(block: Block) -> tuple[Any, ...]:
    """What a block does besides its layers: its function, what that has from outside, and its numbers."""
    numbers = [(name, value) for name, value in vars(block).items() if isinstance(value, int | float)]
    outside = [cell.cell_contents for cell in block.function.__closure__ or ()]
    return block.function.__code__, *outside, *numbers


def test_every_block_can_be_cut_around() -> None:
    """Each kind of block on its own, in all of its forms."""
    for i, name in enumerate(MAKERS):
        outcomes = {outcome(made, torch.randn(2, 3, SIDE, SIDE), 0.5, "layer") for made in forms(i)}
        assert "cut" in outcomes, name
