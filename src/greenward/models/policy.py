"""Implements the policy, with our decoder or a model of `transformers`.

A causal language model of `transformers` has the same interface and results, but is slower. Prompts are
prefilled once per group and finished rows leave the batch, too; training rows are padded and repeat prompts.
Shape suffixes: B rows, T positions, V vocabulary, P prompt positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from greenward.common.errors import CheckpointError, ConfigError, GreenwardError
from greenward.common.interruption import check
from greenward.config.sections import LoraConfig, ModelConfig, ShapeConfig
from greenward.models import checkpoint, lora
from greenward.models.attention import SharedPrefixAttention
from greenward.models.decoder import Attention, Decoder, DecoderShape, is_adapted, pad_to_bucket
from greenward.models.devices import INT8, check_int8, computing_in, resolve_device, resolve_dtype
from greenward.models.kernels.attention import KernelAttention, kernels_for
from greenward.models.sampler import Decoding, NativeDecoding, Sampler, checked_every
from greenward.models.scoring import GroupBatch, TokenScores, score_logits, score_tokens
from greenward.models.tokenizer import Tokenizer
from greenward.rollouts.protocols import SamplingParams


class Policy(Sampler):
    """A causal language model: a rollout engine that also scores completions with gradients.

    Weights are float32 whatever `dtype` says: `dtype` is the type of the arithmetic, as in mixed
    precision. `version` counts the optimizer steps behind the weights; whoever steps raises it.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, *, dtype: torch.dtype) -> None:
        self.model: Any = model  # a `Decoder`, or a model of `transformers` in a subclass
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.version = 0

    def __getstate__(self) -> dict[str, Any]:
        """Without the memory of sampling, which a copy makes anew."""
        return {name: value for name, value in vars(self).items() if name != "_decoding"}

    @classmethod
    def random(
        cls,
        shape: ShapeConfig,
        tokenizer: Tokenizer,
        *,
        seed: int,
        dtype: torch.dtype | str = "float32",
        device: torch.device | str = "auto",
    ) -> Policy:
        """A Llama-shaped decoder from random weights, as large as the tokenizer's vocabulary needs."""
        shared = shape.model_dump(exclude={"vocab_size"})
        sizes = DecoderShape(
            vocab_size=tokenizer.vocab_size, head_dim=shape.hidden_size // shape.heads, **shared
        )
        target = resolve_device(device)
        decoder = Decoder(sizes, compute_dtype=resolve_dtype(dtype, target))
        decoder.initialise(torch.Generator().manual_seed(seed))
        return cls(decoder.to(target), tokenizer, dtype=decoder.compute_dtype)

    @classmethod
    def load(cls, config: ModelConfig) -> Policy:
        """The policy that a recipe's `model` section names by folder or Hugging Face id."""
        if config.id is None:
            raise ConfigError("model.id is not set: Policy.random makes a policy from model.shape")
        return cls.from_folder(
            checkpoint.resolve(config.id, config.cache_dir, offline=config.offline),
            dtype=config.dtype,
            device=config.device,
            gradient_checkpointing=config.gradient_checkpointing is True,
            frozen=config.lora is not None,
        )

    @classmethod
    def for_inference(
        cls, folder: Path | str, *, dtype: torch.dtype | str = "float32", device: torch.device | str = "auto"
    ) -> Policy:
        """The policy in a folder, to be sampled and neither trained nor saved; its weights are held once.

        `int8` for `dtype` keeps the matrices in 8 bits, with the arithmetic of `auto`: faster for one to four
        answers at a time on a CPU, slower for more. Raises `ConfigError` where that cannot be.
        """
        quantised = dtype == INT8
        target = resolve_device(device)
        if quantised:
            check_int8(Path(folder), target)
        policy = cls.from_folder(folder, dtype="auto" if quantised else dtype, device=target, frozen=True)
        is_ours = isinstance(policy.model, Decoder) and policy.device.type == "cpu"
        if is_ours and (quantised or policy.model.packs):
            policy.model.pack(quantised=quantised)
        return policy

    @classmethod
    def from_folder(
        cls,
        folder: Path | str,
        *,
        dtype: torch.dtype | str = "float32",
        device: torch.device | str = "auto",
        gradient_checkpointing: bool = False,
        frozen: bool = False,
    ) -> Policy:
        """Read a Hugging Face folder: with our decoder where it can, else through transformers.

        An adapter in PEFT's format is merged into its base. `frozen` weights, which are not trained, are kept
        in `dtype`. Raises `CheckpointError` for what is no model, and for weights that are NaN or infinite.
        """
        folder = Path(folder)
        base = checkpoint.base_folder(folder)
        tokenizer = Tokenizer.load(checkpoint.holding("tokenizer.json", folder))
        target = resolve_device(device)
        numbers = resolve_dtype(dtype, target)
        shape = checkpoint.read_shape(base or folder)
        merged = None if base is None else lora.read_merged(folder, base)
        if shape is None:
            model = TransformersPolicy.read(folder) if merged is None else merged
            model = model.to(numbers).requires_grad_(False) if frozen else model
            policy: Policy = TransformersPolicy(model.to(target), tokenizer, dtype=numbers)
            checkpoint.demand_finite(dict(model.named_parameters()), folder)
        else:
            if merged is None:
                checkpoint.demand_weights(shape, folder)
            decoder = (Decoder.frozen if frozen else Decoder)(shape, compute_dtype=numbers)
            if merged is None:
                checkpoint.load_weights(decoder, folder)
            else:
                checkpoint.copy_weights(decoder, merged.state_dict())
            policy = cls(decoder.to(target), tokenizer, dtype=numbers)
            checkpoint.demand_finite(checkpoint.published_tensors(decoder), folder)
        policy.set_gradient_checkpointing(gradient_checkpointing)
        return policy

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def max_positions(self) -> int:
        return self.model.shape.max_positions

    def check_ids(self, texts: Iterable[Sequence[int]]) -> None:
        """Raises `CheckpointError` if texts have tokens that the model has no embedding for."""
        highest = max((max(ids, default=0) for ids in texts), default=0)
        if highest >= self.embeddings:
            raise CheckpointError(
                f"expected token ids below {self.embeddings:,}, the number of the model's embeddings, found "
                f"{highest:,}: the tokenizer is of another model",
                remedy="Put the tokenizer of this model beside its weights.",
            )

    @property
    def computed_in(self) -> str:
        """The name of `dtype`, or `int8` for weights of 8 bits: what a result says of its arithmetic."""
        return INT8 if getattr(self.model, "is_quantised", False) else str(self.dtype).removeprefix("torch.")

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Trade a second forward pass for activations of one layer at a time."""
        self.model.gradient_checkpointing = enabled

    def casting_once(self) -> AbstractContextManager[None]:
        """Inside, weights do not change and are cast to `dtype` once, where the decoder is ours."""
        return self.model.casting_once() if isinstance(self.model, Decoder) else nullcontext()

    def add_adapter(self, config: LoraConfig, *, seed: int, base: str | None = None) -> None:
        """Train an adapter from now on, and none of the weights; see `lora.add_adapter`."""
        lora.add_adapter(self.model, config, seed=seed, dtype=self.dtype, base=base)

    def save(self, folder: Path | str) -> None:
        """Write a Hugging Face folder, weights in `dtype`; whole or not at all.

        An adapter is merged into the weights, and also written as it is to the folder `adapter` inside.
        """

        def write(draft: Path) -> None:
            self._write_model(draft)
            self.tokenizer.save(draft)
            if is_adapted(self.model):
                lora.save_adapter(self.model, draft / lora.FOLDER)

        checkpoint.save_folder(Path(folder), write)

    @torch.no_grad()
    def _write_model(self, folder: Path) -> None:
        checkpoint.write(folder, self.model, self.published_tensors(), self.tokenizer)

    def _demand_whole(self) -> None:
        """Raises `GreenwardError` for weights that only serve inference."""
        if getattr(self.model, "is_packed", False):
            raise GreenwardError(
                "this policy is for inference: its weights are packed, and cannot be trained or saved",
                remedy="load it by Policy.from_folder",
            )

    def published_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights under the names that Hugging Face uses, one after the other, with an adapter merged."""
        self._demand_whole()
        tensors = checkpoint.published_tensors(self.model)
        return lora.merged(self.model, tensors) if is_adapted(self.model) else iter(tensors.items())

    @property
    def embeddings(self) -> int:
        """How many tokens have an embedding, from id 0 on."""
        return int(self.model.shape.vocab_size)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """The weights, exact (float32), for resuming; of an adapted model those of the adapter."""
        self._demand_whole()
        model = self.model
        return lora.adapter_state(model) if is_adapted(model) else model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            if is_adapted(self.model):
                lora.load_adapter_state(self.model, state)
            else:
                self.model.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"the saved weights are not of this model's shape: {error}") from error

    @property
    def saves_exactly(self) -> bool:
        """Whether `load_weights` restores from a folder of `save` just what `state_dict` gave."""
        is_decoder = isinstance(self.model, Decoder) and not is_adapted(self.model)
        return is_decoder and self.dtype == torch.float32

    def load_weights(self, folder: Path | str) -> None:
        """Restore the weights of a decoder without an adapter from a folder that `save` wrote."""
        checkpoint.load_weights(self.model, Path(folder))

    def trainable_copy(self) -> Policy:
        """The same weights, to be trained apart; an adapter has a copy, its frozen weights are shared."""
        self._demand_whole()
        return self._copy(lora.shared_copy(self.model))

    def frozen_copy(self) -> Policy:
        """A reference policy: the same weights, never trained; frozen weights are shared as above."""
        if isinstance(self.model, Decoder) and not is_adapted(self.model):
            return self._copy(self.model if self.model.is_packed else self.model.in_compute_dtype())
        return self._copy(lora.shared_copy(self.model).requires_grad_(False))

    def _copy(self, model: nn.Module) -> Policy:
        copied = type(self)(model, self.tokenizer, dtype=self.dtype)
        copied.version = self.version
        return copied

    def sync(self, policy: Policy) -> None:
        """Take over the weights and the version of another policy of the same shape."""
        if policy is not self:
            self.load_state_dict(policy.state_dict())
            self.version = policy.version

    @cached_property
    def _decoding(self) -> Decoding:
        return NativeDecoding(self.model)

    @property
    def hidden_size(self) -> int:
        return self.model.shape.hidden_size

    def completion_hidden(self, batch: GroupBatch) -> Tensor:
        """The final hidden state from which each completion token is predicted (S, E), differentiable.

        The tokens of all completions follow each other, row by row: `batch.spread` lays out what is
        computed from them over (B, T).
        """
        attention = self._attention(batch)
        hidden_UE: Tensor = self.model(batch.token_ids_M, attention, predicting_U=batch.predicting_U)
        return hidden_UE.index_select(0, batch.scored_from_S)

    def _attention(self, batch: GroupBatch) -> Attention:
        """The attention of training: compiled kernels where they serve, else the operations of torch."""
        if native := kernels_for(self.model):
            return KernelAttention(self.model, batch, native)
        from greenward.models.flex import FlexAttention, flex_serves

        kind = FlexAttention if flex_serves(self.model) else SharedPrefixAttention
        return kind(self.model, batch)

    def completion_logprobs(
        self, batch: GroupBatch, *, temperature: float = 1.0, entropy: bool = False, hidden: bool = False
    ) -> TokenScores:
        """Log-probability of every completion token (B, T), and where asked for entropy and hidden states.

        The former two are of softmax(logits / temperature) and 0 in the padding; the latter are those of
        `completion_hidden`, from the same forward pass. All are differentiable.
        """
        logprobs_S, entropy_S, hidden_SE = self._score(batch, temperature, entropy, hidden)
        return TokenScores(
            batch.spread(logprobs_S), None if entropy_S is None else batch.spread(entropy_S), hidden_SE
        )

    def _score(
        self, batch: GroupBatch, temperature: float, entropy: bool, hidden: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities, entropies and hidden states of the scored tokens."""

        def read(hidden_UE: Tensor, unembedding_VE: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
            from_D, targets_D, distinct_S = batch.distinct
            logprobs_D, entropy_D = score_tokens(
                hidden_UE.index_select(0, pad_to_bucket(from_D, hidden_UE.dtype)),
                unembedding_VE,
                pad_to_bucket(targets_D, hidden_UE.dtype),
                temperature=temperature,
                entropy=entropy,
            )
            return (
                logprobs_D.index_select(0, distinct_S),
                None if entropy_D is None else entropy_D.index_select(0, distinct_S),
                hidden_UE.index_select(0, batch.scored_from_S) if hidden else None,
            )

        return self.model(batch.token_ids_M, self._attention(batch), read, batch.predicting_U)


def release_sampling(policy: object) -> None:
    """Give back the weights that only sampling needs, until the policy samples again (`NativeDecoding`)."""
    decoding = vars(policy).get("_decoding") if isinstance(policy, Policy) else None
    if isinstance(decoding, NativeDecoding):
        decoding.release()


class TransformersPolicy(Policy):
    """A policy over `AutoModelForCausalLM`. `frozen_copy`, weights and versions are `Policy`'s."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, *, dtype: torch.dtype) -> None:
        super().__init__(model, tokenizer, dtype=dtype)
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        for layer in max(lists, key=len, default=()):
            if not layer._forward_pre_hooks:  # a copy has those of its model
                layer.register_forward_pre_hook(_check)

    @staticmethod
    def read(folder: Path) -> Any:
        """The model in `folder`, in float32."""
        try:
            return checkpoint.transformers_model(folder)
        except ImportError as error:
            is_there = find_spec("transformers") is not None
            lacking = f"another package ({str(error).strip()[:500]})" if is_there else "transformers"
            raise CheckpointError(
                f"the model in {folder} needs {lacking}, which is not installed",
                remedy=None if is_there else "pip install 'greenward[hf]'",
            ) from error
        except CheckpointError:
            raise
        except Exception as error:  # transformers raises the errors of many libraries
            raise CheckpointError(
                f"expected a causal language model in {folder}, found: {str(error)[:500]}"
            ) from error

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model's config allows; practically none where it names none."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30

    @property
    def embeddings(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Trade a second forward pass for activations; only before training starts."""
        if not enabled:
            return
        self.model.gradient_checkpointing_enable()
        # transformers checkpoints in training mode only, and dropout would make the scored policy
        # another one than the sampled policy.
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    @torch.no_grad()
    def _write_model(self, folder: Path) -> None:
        tensors = self.published_tensors()
        cast = {name: x.to(self.dtype) if x.is_floating_point() else x for name, x in tensors}
        self.model.save_pretrained(folder, state_dict=cast)

    def published_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by their names in `transformers`, with an adapter merged."""
        return lora.merged(self.model, self.model.state_dict())

    @cached_property
    def _decoding(self) -> Decoding:
        return TransformersDecoding(self.model, self.dtype)

    def completion_hidden(self, batch: GroupBatch) -> Tensor:
        out, predicts_BL = self._forward(self.model.base_model, batch)
        return out.last_hidden_state[predicts_BL]  # of states (B, L, E)

    def _score(
        self, batch: GroupBatch, temperature: float, entropy: bool, hidden: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        out, predicts_BL = self._forward(self.model, batch, output_hidden_states=hidden)
        logits_SV = out.logits[predicts_BL]
        scores = score_logits(logits_SV, batch.targets_S, temperature=temperature, entropy=entropy)
        return *scores, out.hidden_states[-1][predicts_BL] if hidden else None

    def _forward(self, model: Any, batch: GroupBatch, **options: Any) -> tuple[Any, Tensor]:
        """What `model` returns for whole rows, and which positions (B, L) predict the scored tokens."""
        lengths_B = batch.completion_mask_BT.sum(1).tolist()
        completions = batch.completion_ids_BT.cpu().numpy()
        rows = [
            np.concatenate((prompt, completion[:length]))
            for prompt, completion, length in zip(batch.row_prompts, completions, lengths_B, strict=True)
        ]
        token_ids_BL, mask_BL = _pad(rows, "right", self.device)
        prompts_B1 = torch.tensor([[len(prompt)] for prompt in batch.row_prompts], device=self.device)
        positions_BL = mask_BL.cumsum(1)  # from 1, and in the padding that of the last token
        predicts_BL = (positions_BL >= prompts_B1) & (positions_BL < positions_BL[:, -1:])
        checkpoints = any(getattr(module, "gradient_checkpointing", False) for module in self.model.modules())
        self.model.train(checkpoints and torch.is_grad_enabled())
        lora.set_dropout(self.model, torch.is_grad_enabled())
        with computing_in(self.dtype, self.device):
            out = model(input_ids=token_ids_BL, attention_mask=mask_BL, use_cache=False, **options)
        return out, predicts_BL


@dataclass(eq=False)
class TransformersDecoding(Decoding):
    """The `Decoding` of a `transformers` model: left-padded prompts, its own cache classes."""

    model: Any
    dtype: torch.dtype

    @property
    def joins(self) -> bool:
        return False

    def rows_at_once(self, max_tokens: int) -> int:
        return 256  # how large the cache is depends on the model: a cautious choice

    def open(self, rows: int, max_tokens: int) -> None:
        pass

    def add(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int]) -> Tensor:
        device = next(self.model.parameters()).device
        self.model.eval()  # in training mode, a model with gradient checkpointing gives no key-value cache
        token_ids_NP, self._mask_BP = _pad([np.asarray(prompt) for prompt in prompts], "left", device)
        self._cache: Any = None
        logits_NV = self._forward(token_ids_NP)
        row_prompt_B = torch.from_numpy(np.repeat(np.arange(len(prompts)), group_sizes)).to(device)
        self._select(row_prompt_B)
        return logits_NV.index_select(0, row_prompt_B)

    def step(self, token_ids_B: Tensor) -> Tensor:
        self._mask_BP = torch.cat((self._mask_BP, self._mask_BP.new_ones(len(token_ids_B), 1)), dim=1)
        return self._forward(token_ids_B[:, None])

    def steps_at_once(self, params: SamplingParams) -> int:
        return checked_every(self._mask_BP.device)

    def keep(self, kept_B: np.ndarray) -> None:
        self._select(torch.from_numpy(kept_B).to(self._mask_BP.device))

    def _select(self, rows: Tensor) -> None:
        self._mask_BP = self._mask_BP.index_select(0, rows)
        self._cache.batch_select_indices(rows)

    def _forward(self, token_ids_BT: Tensor) -> Tensor:
        positions = (self._mask_BP.cumsum(1) - 1).clamp_(min=0)[:, -token_ids_BT.shape[1] :]
        with computing_in(self.dtype, token_ids_BT.device):
            out = self.model(
                input_ids=token_ids_BT,
                attention_mask=self._mask_BP,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self._cache = getattr(out, "past_key_values", None)
        if self._cache is None:  # an encoder, or a model whose state is of another kind
            raise CheckpointError(
                f"expected a causal language model with a cache of keys and values, found "
                f"{type(self.model).__name__}, which gives none"
            )
        return out.logits[:, -1]


def _check(_layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Before a layer computes, and before its gradient is computed."""
    check()
    if inputs and isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
        inputs[0].register_hook(lambda _: check())


def _pad(rows: Sequence[np.ndarray], side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and their mask, padded to one width at the `left` or the `right`."""
    tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    token_ids = pad_sequence(tensors, batch_first=True, padding_side=side)
    mask = pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True, padding_side=side)
    return token_ids.to(device), mask.to(device)
