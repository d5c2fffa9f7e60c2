"""The least that a model's work can take on this machine: its matrix products alone, and its memory's speed.

Shape suffixes: M rows, E inputs and N outputs of a matrix.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from greenward.models.gguf import unpacked
from greenward.models.products import linear, product, products_for

MOST_NUMBERS = 1 << 27  # of a product's result: larger ones are computed in parts
BUFFER = 1 << 29  # bytes, far more than the caches hold


@dataclass(frozen=True)
class Shape:
    """The numbers of a model's config.json that decide how large its matrices and its cache are."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def read(cls, model: Path) -> Shape:
        """Of a model's folder or .gguf file."""
        config = json.loads(((unpacked(model) if model.is_file() else model) / "config.json").read_text())
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocabulary=config["vocab_size"],
        )

    def matrices(self) -> dict[str, tuple[int, int, int]]:
        """Of a layer: outputs, inputs, and how many published matrices are one here."""
        attended = self.heads * self.head_dim
        return {
            "qkv": (attended + 2 * self.kv_heads * self.head_dim, self.hidden, 3),
            "attention_out": (self.hidden, attended, 1),
            "gate_up": (2 * self.intermediate, self.hidden, 2),
            "down": (self.hidden, self.intermediate, 1),
        }

    @property
    def weights(self) -> int:
        """The numbers that a step reads."""
        layer = sum(outputs * inputs for outputs, inputs, _ in self.matrices().values())
        return self.layers * layer + self.vocabulary * self.hidden

    @property
    def cached(self) -> int:
        """The numbers that a token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim


# A way to compute: forward, the gradient of the inputs, and the gradient of the weight.
Way = tuple[
    Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]
]
WAYS: dict[str, Way] = {
    "torch": (F.linear, torch.mm, lambda grad_MN, x_ME: grad_MN.t() @ x_ME),
    "greenward": (
        linear,
        lambda grad_MN, weight_NE: product(products_for(grad_MN, weight_NE), grad_MN, weight_NE),
        lambda grad_MN, x_ME: product(products_for(x_ME, x_ME.new_empty(grad_MN.shape[1], x_ME.shape[1])),
                                      grad_MN.t(), x_ME),
    ),
}  # fmt: skip


class Products:
    """The products of a model with as many matrices as it has, each with memory of its own.

    With `rank`, the matrices of the layers are frozen and an adapter of that rank is trained. With `packed`,
    forward passes are also computed from weights that oneDNN has laid out in advance, which takes as much
    memory again.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, *, rank: int = 0, packed: bool = False) -> None:
        self._dtype = dtype
        self._layers = [
            {name: self._weight(outputs, inputs) for name, (outputs, inputs, _) in shape.matrices().items()}
            for _ in range(shape.layers)
        ]
        self._head = self._weight(shape.vocabulary, shape.hidden)
        self._is_frozen = rank > 0
        self._factors = [
            {
                name: (self._weight(parts * rank, inputs), self._weight(outputs, rank))
                for name, (outputs, inputs, parts) in shape.matrices().items()
            }
            for _ in range(shape.layers if rank else 0)
        ]
        weights = [self._head, *(weight for layer in self._layers for weight in layer.values())]
        reorder = torch.ops.mkldnn._reorder_linear_weight
        self._packed = {id(weight): reorder(weight) for weight in weights if packed}

    def _weight(self, outputs: int, inputs: int) -> Tensor:
        return torch.randn(1, inputs).to(self._dtype).expand(outputs, inputs).contiguous()

    @torch.inference_mode()
    def seconds(self, rows: int, predicting: int, *, backward: bool = False, repeats: int = 1) -> float:
        """The time of one pass over `rows` tokens, from `predicting` of which others are predicted.

        Each kind of matrix is computed in the way that is the faster one in all layers together; each time
        is the median of the repeats. With `backward`, the products of the gradients are added.
        """
        ways = WAYS | ({"packed": (self._packed_product, *WAYS["torch"][1:])} if self._packed else {})
        taken: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ways}
        for _ in range(repeats):
            for name, way in ways.items():
                spent: dict[str, float] = defaultdict(float)
                for kind, weight, kind_rows, is_trained in self._pass(rows, predicting, backward):
                    spent[kind] += self._timed(way, weight, kind_rows, backward, is_trained)
                for kind, seconds in spent.items():
                    taken[name][kind].append(seconds)
        kinds = next(iter(taken.values()))
        return sum(min(statistics.median(found[kind]) for found in taken.values()) for kind in kinds)

    def _packed_product(self, x_ME: Tensor, weight_NE: Tensor) -> Tensor:
        packed = self._packed[id(weight_NE)]
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x_ME, packed, None, "none", [], "")
        return found

    def _pass(self, rows: int, predicting: int, backward: bool) -> Iterator[tuple[str, Tensor, int, bool]]:
        """Kind, weight, rows, and whether the weight is trained, of each product."""
        for index, layer in enumerate(self._layers):
            for kind, weight in layer.items():
                needed = predicting if index == len(self._layers) - 1 and kind != "qkv" else rows
                yield kind, weight, needed, not self._is_frozen
                if self._is_frozen and backward:
                    for side, factor in zip("AB", self._factors[index][kind], strict=True):
                        yield f"{kind} {side}", factor, needed, True
        yield "head", self._head, predicting, not self._is_frozen

    def _timed(self, way: Way, weight: Tensor, rows: int, backward: bool, is_trained: bool) -> float:
        forward, to_inputs, to_weight = way
        seconds, part = 0.0, max(1, MOST_NUMBERS // len(weight))
        for first in range(0, rows, part):
            x = weight.new_ones(min(part, rows - first), weight.shape[1])
            began = time.perf_counter()
            out = forward(x, weight)
            if backward:
                to_inputs(out, weight)
                if is_trained:
                    to_weight(out, x)
            seconds += time.perf_counter() - began
        return seconds


def memory_speed() -> dict[str, float]:
    """Bytes a second of reading and of copying (those read and those written) a large buffer."""
    source, target = torch.ones(2, BUFFER // 4)

    def fastest(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    return {"read": BUFFER / fastest(source.sum), "copy": 2 * BUFFER / fastest(lambda: target.copy_(source))}
