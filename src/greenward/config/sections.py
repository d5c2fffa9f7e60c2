"""Defines the sections that the recipes of several tasks share, those of the algorithms among them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import urlparse

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_core import PydanticKnownError

from greenward.common.text import load_keys
from greenward.config.section import (
    BugsConfig,
    ConfigSection,
    FamiliesConfig,
    Fraction,
    PositiveFraction,
    Seed,
    Share,
)

DType = Literal["auto", "float32", "bfloat16", "float16"]
InferenceDType = Literal[DType, "int8"]
"""What answers are computed in where nothing is trained; int8 keeps the weights in 8 bits."""

GENERATED_CORPUS = "corpus"
NUM_QUESTIONS = "MBPP_EVAL_NUM_QUESTIONS"
"""The environment variable that overrides `num_questions` of MBPP's suites in a recipe."""


class ShapeConfig(ConfigSection):
    """Shape of a decoder made from random weights (used when `model.id` is not set)."""

    layers: PositiveInt = 4
    hidden_size: PositiveInt = 128
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 4
    intermediate_size: PositiveInt = 384
    max_positions: PositiveInt = 512
    vocab_size: PositiveInt = Field(1024, description="upper bound; the trained tokenizer may be smaller")

    def mistakes(self) -> Iterator[str]:
        if self.hidden_size % self.heads:
            yield f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}"
        if self.heads % self.kv_heads:
            yield f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}"


class LoraConfig(ConfigSection):
    """A LoRA adapter, which is trained in place of all weights (extra `peft`)."""

    r: PositiveInt = Field(16, description="rank of the change of each matrix")
    alpha: PositiveInt = Field(32, description="the change is multiplied by alpha / r")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="of the adapter's inputs while training; makes the trained policy unlike the sampled one",
    )
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        "all-linear",
        description="layers that are changed, such as [q_proj, v_proj]; the output layer never is",
    )
    quantize: Literal["4bit"] | None = Field(None, description="frozen weights in 4 bits (QLoRA)")


class ModelConfig(ConfigSection):
    """The policy: a Hugging Face folder or id, an earlier run, or a decoder from random weights."""

    id: str | None = Field(None, description="Hugging Face id, model folder, GGUF file or run directory")
    cache_dir: str | None = Field(None, description="where downloaded models are kept")
    offline: bool = Field(False, description="take models from the cache only; never ask the hub")
    shape: ShapeConfig = ShapeConfig()
    dtype: DType = Field(
        "float32", description="of the arithmetic; auto: bfloat16 where the hardware supports it"
    )
    device: str = Field("auto", description="auto (cuda, else cpu), cpu, cuda, cuda:1 …, mps")
    gradient_checkpointing: bool | Literal["auto"] = Field(
        "auto", description="compute activations twice to keep fewer; auto: where training would not fit else"
    )
    lora: LoraConfig | None = Field(None, description="train an adapter only; lora: {} has usual values")
    prompt_style: Literal["auto", "completion", "chat"] = Field(
        "auto", description="auto: chat when the tokenizer has a chat template, else completion"
    )
    system_prompt: str | None = None

    def mistakes(self) -> Iterator[str]:
        if self.dtype == "float16" and self.device == "cpu":
            yield "dtype float16 does not train on cpu; use float32 or bfloat16"


def _joined(sources: Any) -> Any:
    """Several sources as the text by which one field names them."""
    is_list = isinstance(sources, (list, tuple)) and all(isinstance(one, str) for one in sources)
    return ",".join(sources) if is_list and sources else sources


Sources = Annotated[str, BeforeValidator(_joined, json_schema_input_type=str | list[str])]


class ProblemsConfig(ConfigSection):
    """Problem sources: `families`, a shipped set, a public suite (`mbpp:train`, `humaneval`), file or folder.

    A list, or commas between them, names several files, folders and suites, read one after the other.
    The prefix `bugs:` asks for the repair of the source's programs, after a bug was put into each.
    """

    train: Sources = "families"
    held_out: Sources = "families"
    families: FamiliesConfig = FamiliesConfig()
    bugs: BugsConfig = BugsConfig()
    verify_references: bool = Field(True, description="run the reference solutions of user files first")
    allow_test_ids: bool = Field(False, description="allow training on MBPP's test problems (ids 11 to 510)")
    allow_shared: bool = Field(
        False, description="train although problems of an evaluation are among those to train on"
    )
    skip_bad_rows: bool = Field(False, description="leave out rows of files that cannot be used")


class SupervisedConfig(ConfigSection):
    """Supervised training: the warm start of RL, or the whole run (`algorithm.name: sft`)."""

    data: str | None = Field(
        None,
        description="JSONL of {prompt, completion} or {messages}; corpus = the generated corpus, of other "
        "problems their references, which is also the default of a warm start",
    )
    error_rate: Fraction = Field(
        0.7, description="share of corpus examples in which one component carries a plausible mistake"
    )
    examples_per_problem: PositiveInt = Field(4, description="corpus examples drawn for each problem")
    max_steps: PositiveInt = 600
    max_seconds: PositiveFloat | None = Field(None, description="training time limit")
    batch_size: PositiveInt = 64
    keep_together: PositiveInt = Field(
        1, description="so many examples that follow each other are shuffled as one, such as both of a pair"
    )
    learning_rate: PositiveFloat = Field(
        3e-3, description="default for a pretrained model: 2e-5, with model.lora 2e-4"
    )
    warmup_steps: NonNegativeInt = 30
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0


class ToolsConfig(ConfigSection):
    """An agent with the tools `shell` and `apply_patch`: its budgets, and how it writes calls."""

    max_calls: PositiveInt = Field(12, description="calls of an episode")
    seconds: PositiveFloat = Field(120.0, description="wall time of all calls of an episode")
    call_seconds: PositiveFloat = Field(10.0, description="wall time of one call")
    max_tokens: PositiveInt | None = Field(
        None, description="tokens that the policy writes in an episode; sampling.max_tokens is for one answer"
    )
    output_chars: PositiveInt = Field(4000, description="kept of the output of a call")
    call_reward: NonNegativeFloat = Field(
        0.0, description="of a call that did what it says, compared turn by turn within a group (GRPO)"
    )
    format: Literal["auto", "tags", "native"] = Field(
        "auto", description="native: as the chat template writes calls; auto: native where it can"
    )


class EnvironmentConfig(ConfigSection):
    """How an episode goes: one answer, or several with feedback between them."""

    max_turns: PositiveInt = Field(
        1, description="answers per episode; each wrong one is followed by its first failing test"
    )


class EditsConfig(EnvironmentConfig):
    """How an episode goes, and what an answer is."""

    answer: Literal["function", "search_replace", "diff"] = Field(
        "function",
        description="what the policy writes: the whole function, or edits of the problem's program",
    )


class SamplingConfig(ConfigSection):
    """How answers are sampled during training."""

    max_tokens: PositiveInt = 64
    temperature: PositiveFloat = 1.0
    top_p: PositiveFraction = 1.0
    top_k: NonNegativeInt = 0
    stop_strings: tuple[str, ...] = ()


class RewardTermConfig(ConfigSection):
    """One reward term: a known name (tests, execution_ladder, code_quality, …) or `module:function`."""

    name: str
    weight: float = 1.0
    options: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: PositiveFloat = Field(60.0, description="for module:function terms, per batch")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="for functions with TRL's signature: our column for a parameter of theirs (theirs: ours)",
    )
    completions: Literal["auto", "text", "messages"] = Field(
        "auto", description="for functions with TRL's signature: format of prompts and completions"
    )

    def mistakes(self) -> Iterator[str]:
        for name, value in self.options.items():
            if isinstance(value, float) and not math.isfinite(value):
                yield f"options.{name}: expected a finite number, found {value}"


class RewardModelConfig(ConfigSection):
    """A learned reward model: a head on the starting policy that predicts the chance of passing all tests."""

    weight: float = Field(0.0, description="of the predicted chance in the reward; 0 = only measured")
    hidden_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-4
    weight_decay: NonNegativeFloat = 0.1
    buffer: PositiveInt = Field(4096, description="newest graded answers that are kept as training data")
    batch_size: PositiveInt = 256
    updates_per_step: PositiveInt = Field(8, description="optimizer steps of the head per training step")


class LoopConfig(ConfigSection):
    """Checkpoints and threads of any training run."""

    checkpoint_interval_steps: PositiveInt = 20
    keep_checkpoints: PositiveInt = Field(2, description="newest checkpoints that are kept")
    keep_spaced_checkpoints: NonNegativeInt = Field(
        2,
        description="older ones that are kept, one of each doubling of the age, to go back to before a fault",
    )
    threads: PositiveInt | None = Field(None, description="torch threads; none = all, or 1 if that is faster")
    rollouts_per_step: PositiveInt | None = Field(
        None, description="episodes of each step that are kept in rollouts/; none = all"
    )


class MonitorConfig(ConfigSection):
    """Live alarms of a training: tests of changes, and rules (docs/monitor.md)."""

    enabled: bool = True
    rules: str = Field("default", description="a preset (grpo_safe, ppo_safe …) or a YAML file of rules")
    stop_on_critical: bool = Field(False, description="stop cleanly, with a checkpoint, at a critical alarm")


class TrainingConfig(LoopConfig):
    """Sizes, optimizer and schedule of reinforcement learning."""

    max_steps: PositiveInt = 100
    max_seconds: PositiveFloat | None = Field(
        None, description="training time limit over all sessions of the run, evaluation excluded"
    )
    prompts_per_step: PositiveInt = 16
    num_generations: PositiveInt = Field(16, description="answers per prompt (G); GRPO needs 2 or more")
    micro_batch_sequences: PositiveInt = Field(
        64, description="most answers per forward and backward pass; a group that it splits is read in parts"
    )
    learning_rate: PositiveFloat = Field(
        2.5e-4, description="default for a pretrained model: 1e-6, with model.lora 1e-5"
    )
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    final_rate: Fraction = Field(0.0, description="share of the learning rate at which the schedule ends")
    warmup_steps: NonNegativeInt = 0
    weight_average: Share | None = Field(
        None, description="decay of an average of the weights, which is evaluated and saved; none = off"
    )
    weight_decay: NonNegativeFloat = 0.0
    adam_betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    max_grad_norm: PositiveFloat = 1.0


class SuiteConfig(ConfigSection):
    """A public suite that is evaluated during training, one answer per question. A name alone is enough."""

    name: str = Field(description="mbpp, mbpp:test, humaneval+, … or a file; see docs/problems.md")
    num_questions: Annotated[
        PositiveInt | None,
        BeforeValidator(lambda value: value, json_schema_input_type=PositiveInt | Literal["auto"] | None),
    ] = Field(
        None,
        validate_default=True,
        description=f"auto = evaluation.num_questions, none = all; {NUM_QUESTIONS} overrides it for mbpp",
    )
    temperature: NonNegativeFloat = 0.2
    timeout_seconds: PositiveFloat | None = Field(
        None,
        description="CPU time of one answer (contest suites: of one test), more where the suite's reference"
        " needs more; none = the suite's own limits, 10 where it has none",
    )
    max_tokens: PositiveInt | None = Field(None, description="none = as in sampling")
    fewshot: Annotated[int, Field(ge=0, le=3)] = Field(0, description="MBPP's examples before each problem")
    optional: bool = Field(
        False, description="leave out, with a warning, what is not at hand and what is trained on"
    )
    as_trained: bool = Field(
        True,
        description="of a model with a chat template also by the training's prompt (NAME_as_trained), so that"
        " a learned format is not taken for a skill",
    )

    @field_validator("num_questions", mode="after")
    @classmethod
    def _environment_overrides(cls, number: int | None, suite: ValidationInfo) -> int | None:
        load_keys()
        text = os.environ.get(NUM_QUESTIONS)
        if text is None or str(suite.data.get("name")).partition(":")[0] != "mbpp":
            return number
        if not text.strip().isdecimal() or int(text) < 1:
            raise ValueError(f"{NUM_QUESTIONS}: expected a positive whole number, found {text!r}")
        return int(text)


def named(value: Any) -> Any:
    """A section of which only the name was given."""
    return {"name": value} if isinstance(value, str) else value


class EvaluationConfig(ConfigSection):
    """Evaluation before the first step, every `eval_interval_steps` steps, and after the last.

    All keys except `suites` concern the held-out problems.
    """

    enabled: bool = True
    at_start: bool = Field(True, description="also before the first step")
    num_questions: PositiveInt = 300
    samples: PositiveInt = Field(8, description="answers per problem (n of pass@k)")
    k: tuple[PositiveInt, ...] = Field((1, 8), min_length=1)
    temperature: NonNegativeFloat = 1.0
    greedy: bool = Field(True, description="also measure greedy pass@1")
    eval_interval_steps: PositiveInt = 20
    seed: Seed = 1234
    suites: tuple[
        Annotated[SuiteConfig, BeforeValidator(named, json_schema_input_type=str | SuiteConfig)], ...
    ] = Field((), description="public suites to evaluate as well: names or sections")

    def mistakes(self) -> Iterator[str]:
        if max(self.k) > self.samples:
            yield f"k={max(self.k)} needs at least as many samples per problem; samples is {self.samples}"


class VLLMConfig(ConfigSection):
    """vLLM on this machine, in processes of its own beside the training."""

    gpu_memory_utilization: PositiveFraction = Field(
        0.45, description="share of the GPU's memory for vLLM's weights and cache, beside the training's"
    )
    max_model_len: PositiveInt | None = Field(
        None, description="longest prompt and answer together, in tokens; none = the model's positions"
    )
    enforce_eager: bool = Field(False, description="no CUDA graphs and no compilation")
    tensor_parallel_size: PositiveInt = 1
    sleep: bool = Field(False, description="give the GPU's memory back during each update")
    options: dict[str, Any] = Field(
        default_factory=dict, description="further arguments of vllm.LLM, such as {max_num_seqs: 64}"
    )


class ServerConfig(ConfigSection):
    """A server of `vllm serve`; its key, if it asks for one, is read from VLLM_API_KEY."""

    base_url: str | None = Field(None, description="such as http://localhost:8000")
    model: str | None = Field(None, description="the name it serves; none = the only one")
    concurrency: PositiveInt = Field(64, description="requests at a time, one for each prompt")
    request_seconds: PositiveFloat = Field(300.0, description="longest time of one request")
    patience_seconds: PositiveFloat = Field(
        600.0, description="time for which a server that does not answer is tried before the run stops"
    )


class TokensConfig(ConfigSection):
    """Which answers have their numbers by token written into `tokens/`; about 50 bytes a token."""

    every: PositiveInt = Field(10, description="steps from one file to the next")
    answers: PositiveInt = Field(16, description="how many, from the first kept answer of the step on")


class RolloutsConfig(ConfigSection):
    """Where answers are sampled: by the trainer's own model, by vLLM beside it, or by a server of vLLM."""

    engine: Literal["native", "vllm", "server"] = Field(
        "native",
        description="the trainer's own model, which repeats every run exactly; vLLM on this machine, started "
        "and ended with the training; or a server that you start (the training then needs no vLLM itself)",
    )
    vllm: VLLMConfig = VLLMConfig()
    server: ServerConfig = ServerConfig()
    transfer: Literal["file", "nccl", "ipc"] = Field(
        "file",
        description="how weights reach vLLM: file: a model folder, on every device, for other machines over "
        'a shared one; nccl: between GPUs, for a server started with {"backend": "nccl"}; ipc: handles to '
        "CUDA memory, for engine: vllm on the training's GPU",
    )
    transfer_dir: str | None = Field(
        None,
        description="folder that vLLM reads as well; none = memory (/dev/shm, with room for two models), "
        "else a temporary one",
    )
    max_staleness: NonNegativeInt = Field(
        0, description="1 = sample for the next step during the update, with weights one update old"
    )
    tokens: TokensConfig | None = Field(
        None,
        description="keep the numbers by token of some answers, as in {every: 10, answers: 16}; none = off",
    )

    def mistakes(self) -> Iterator[str]:
        if self.max_staleness > 1:
            yield (
                f"max_staleness {self.max_staleness} is more than the correction covers: 1 is the most, "
                "since samples that are several updates old say too little about the policy"
            )
        if self.engine == "server" and self.server.base_url is None:
            yield "engine: server needs server.base_url, such as http://localhost:8000"
        if self.engine != "server" and self.server.base_url is not None:
            yield f"server.base_url is given, but engine is {self.engine}: set engine=server"
        if self.transfer != "file" and self.engine == "native":
            yield f"transfer: {self.transfer} sends weights to vLLM, but engine is native"
        if self.transfer == "ipc" and self.engine == "server":
            yield "transfer: ipc shares a GPU's memory with engine: vllm; a server needs file or nccl"
        if self.transfer == "nccl" and self.engine == "vllm":
            yield (
                "transfer: nccl needs a GPU for vLLM alone, and engine: vllm shares that of the training: "
                "use file or ipc, or engine=server"
            )
        if self.vllm.sleep and self.engine != "vllm":
            yield f"vllm.sleep needs engine: vllm, found {self.engine}"

    @property
    def differs(self) -> bool:
        """Whether the probabilities that answers are sampled with are not exactly those of the trainer."""
        return self.engine != "native" or self.max_staleness > 0


class WandbConfig(ConfigSection):
    """The mirror on Weights & Biases; offline needs no account."""

    project: str = "greenward"
    entity: str | None = None
    mode: Literal["online", "offline"] = "offline"


class TrackioConfig(ConfigSection):
    """The mirror in Trackio: on this machine, or in a Hugging Face Space."""

    project: str = "greenward"
    space_id: str | None = Field(None, description="owner/name of a Space; none = on this machine")


class MlflowConfig(ConfigSection):
    """The mirror in MLflow."""

    experiment: str = "greenward"
    uri: str | None = Field(
        None, description="of the tracking server; none = MLFLOW_TRACKING_URI, else mlflow.db in the run"
    )

    @field_validator("uri", mode="after")
    @classmethod
    def _without_password(cls, uri: str | None) -> str | None:
        if uri is not None and urlparse(uri).password:
            raise ValueError(
                "a password does not belong into a recipe, which is kept with the run; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return uri


class TrackingConfig(ConfigSection):
    """Mirrors of the local files. None is required."""

    tensorboard: bool = False
    wandb: WandbConfig | None = None
    trackio: TrackioConfig | None = None
    mlflow: MlflowConfig | None = None
    samples: NonNegativeInt = Field(
        4, description="answers of each evaluation, and of the step before it, that go into tables"
    )

    @property
    def is_on(self) -> bool:
        """Whether any tracker is asked for."""
        return bool(self.tensorboard or self.wandb or self.trackio or self.mlflow)


MoreThanOne = Annotated[float, Field(gt=1)]
OwnFunction = Annotated[str, Field(pattern=r"^[^:\s]+:[^:\s]+$", description="your own, as module:function")]


def _as_one(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One mistake for what is neither a name nor `module:function`, and not one for each."""
    try:
        return check(value)
    except ValidationError:
        raise PydanticKnownError("literal_error", {"expected": "a name or module:function"}) from None


Loss = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce", "ppo"]
LossOrOwn = Annotated[Loss | OwnFunction, WrapValidator(_as_one)]
Advantage = Literal["grpo", "dr_grpo", "rloo", "reinforce"]
AdvantageOrOwn = Annotated[Advantage | OwnFunction, WrapValidator(_as_one)]


class KLConfig(ConfigSection):
    """Pull towards the reference policy (the policy at the start of the run), on every scored answer.

    All estimators are weighted by the importance ratio, and have the gradient of the KL between next-token
    distributions. Without `target` the coefficient β is fixed. With it, β follows the measured KL after each
    batch of n episodes (Ziegler et al. 2019, arXiv 1909.08593, section 2.2):
    e = clip(KL / target − 1, ±0.2), β ← β · (1 + e · n / horizon).
    """

    coefficient: NonNegativeFloat = Field(0.0, description="with a target, its first value")
    measure: bool = Field(
        False,
        description="with coefficient 0: keep a reference and log `kl`, which changes no gradient and costs "
        "a forward pass",
    )
    estimator: Literal["k1", "k2", "k3"] = "k3"
    target: PositiveFloat | None = Field(None, description="KL in nats per token to adapt to; none = fixed")
    horizon: PositiveInt = Field(10_000, description="episodes over which the coefficient adapts")

    refresh_every: PositiveInt | None = Field(
        None,
        description="steps after which the reference becomes the policy of then, or the average that "
        "training.weight_average keeps; none = never",
    )

    def mistakes(self) -> Iterator[str]:
        if self.target is not None and self.coefficient == 0:
            yield (
                "target adapts the coefficient by factors, and coefficient is 0: "
                "give it a first value above 0 (0.1 is usual)"
            )


class PPOKLConfig(KLConfig):
    """The KL of PPO, which can also be a cost in the reward of each token (arXiv 2203.02155, eq. 2)."""

    in_reward: bool = Field(False, description="subtract it from the reward of each token, not in the loss")


class OverlongConfig(ConfigSection):
    """Treatment of answers that reach the token limit (DAPO §3.4)."""

    mask_truncated: bool = Field(
        False,
        description="truncated answers leave the loss, not the baseline; `rejection` does not keep them",
    )
    penalty_buffer: NonNegativeInt = Field(
        0, description="tokens before the limit over which the penalty rises from 0 to penalty"
    )
    penalty: NonNegativeFloat = 1.0


class CriticConfig(ConfigSection):
    """The critic of PPO: its trunk (the policy's or its own copy), and how values are learned.

    The gradients of the policy's loss and of the value loss are clipped apart, then added. Where the policy
    takes no step, a separate critic continues in full, with a shared trunk its head alone. Whitening divides
    by the deviation of the advantages, or by the usual deviation of the rewards of earlier batches where that
    is larger. Where the variance of the advantages exceeds 4 times that of the rewards, they are multiplied
    by 4 · Var(reward) / Var(advantage). With equal rewards they are 0.
    """

    trunk: Literal["shared", "separate"] = Field(
        "shared",
        description="shared: a head on the policy's own hidden states, gradients included; separate: a "
        "trainable copy of the starting policy, which needs its memory again",
    )
    discount: PositiveFraction = 1.0
    gae_lambda: Fraction = Field(0.95, description="λ of the advantages")
    value_lambda: Fraction = Field(
        1.0, description="λ of the returns to learn (VC-PPO, arXiv 2503.01491, §3.2); 1 = no bootstrapping"
    )
    loss_weight: PositiveFloat = 0.5
    clip: PositiveFloat | None = Field(0.2, description="distance from the old values; none = off")
    learning_rate: PositiveFloat | None = Field(
        None, description="of the head and a separate trunk; none = training.learning_rate"
    )
    max_grad_norm: PositiveFloat | None = Field(None, description="none = training.max_grad_norm")
    updates_per_batch: PositiveInt | None = Field(None, description="none = algorithm.updates_per_batch")
    whiten_advantages: bool = Field(
        True,
        description="scale to mean 0 and deviation 1 over a batch's tokens, less where rewards vary little",
    )


class ImportanceConfig(ConfigSection):
    """Importance sampling between sampler and trainer: weights r = p_trainer / p_sampler, bounded.

    `truncate` is truncated importance sampling (TIS), `mask` masked importance sampling (MIS; with low 0.5
    and high 5, IcePop). Use masks where `importance/outside` is small and rare outliers are extreme.
    """

    mode: Literal["truncate", "mask"] = Field(
        "truncate", description="weights outside of the bounds are cut to the nearer one, or become 0"
    )
    level: Literal["token", "sequence"] = Field(
        "token", description="the ratio of each token, or the product over all tokens of the answer"
    )
    low: NonNegativeFloat = 0.0
    high: PositiveFloat = 2.0

    def mistakes(self) -> Iterator[str]:
        if not self.low < self.high:
            yield f"low {self.low} must be below high {self.high}"
        if self.low > 1 or (self.mode == "mask" and self.high < 1):
            yield (
                f"the bounds [{self.low}, {self.high}] exclude 1, the weight where sampler and trainer agree"
            )


class AlgorithmConfig(ConfigSection):
    """How a task is learned. A name alone is enough."""

    name: str


class SupervisedAlgorithmConfig(AlgorithmConfig):
    """Supervised training, whose settings are those of `warm_start`."""

    name: Literal["sft"] = "sft"


class AcceptedAnswersConfig(ConfigSection):
    """Which sampled answers are kept, and how the policy is trained on them by supervision."""

    min_reward: float | None = Field(
        None, description="keep answers with at least this reward; none = answers that pass all their tests"
    )
    max_per_prompt: PositiveInt = Field(4, description="different answers per problem to train on, at most")
    replay_rounds: NonNegativeInt = Field(0, description="earlier rounds whose kept answers are used again")
    epochs: PositiveInt = Field(1, description="passes over the kept answers in each round")
    batch_size: PositiveInt = Field(64, description="kept answers per optimizer step")


class SelfImitationConfig(AcceptedAnswersConfig):
    """Supervised steps on the policy's own right answers above their baseline, after each update.

    Self-imitation learning (arXiv 1806.05635); VAPO adds the likelihood of right answers to PPO (2504.05118).
    The steps have an optimizer of their own: the states of AdamW need their memory twice. In games, which
    have no tests, nothing is imitated unless `min_reward` is set.
    """

    max_per_prompt: PositiveInt = Field(2, description="different answers per problem to train on, at most")
    replay_rounds: NonNegativeInt = Field(8, description="earlier steps whose kept answers are used again")
    learning_rate: PositiveFloat | None = Field(
        None, description="of these steps, with the schedule of training; none = training.learning_rate"
    )


class PolicyGradientConfig(AlgorithmConfig):
    """What the policy-gradient algorithms share: the loss, its clipping, KL and entropy terms."""

    loss: LossOrOwn = "dapo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = Field(0.2, description="DAPO uses 0.28; CISPO's upper bound is 1 + this")
    updates_per_batch: PositiveInt = Field(
        1,
        description="passes over each batch of episodes; the first takes the groups in order, later ones "
        "(with a critic all, by answers) shuffle them",
    )
    minibatches: PositiveInt = Field(1, description="optimizer steps per pass; groups are never split")
    max_step_kl: PositiveFloat | None = Field(
        None,
        description="on the first minibatch with a higher approx_kl the policy takes no step, and none after "
        "it on this batch; a critic continues",
    )
    kl: KLConfig = KLConfig()
    entropy_coefficient: NonNegativeFloat = Field(
        0.0,
        description="weight of the entropy bonus in the loss, in nats at the sampling temperature; with "
        "entropy_target, its first value. The PPO paper uses 0.01; with 10⁵ tokens "
        "in the vocabulary start at 0.001",
    )
    entropy_target: PositiveFloat | None = Field(
        None,
        description="nats per token to which the coefficient c adapts after each batch (arXiv 1812.05905, "
        "eq. 18), within a factor of 100: e = clip(1 − entropy / target, ±1), c ← c · exp(0.05 · e); "
        "none = fixed",
    )
    negative_weight: NonNegativeFloat = Field(
        1.0, description="factor on negative advantages; 0 = no gradient of answers below the baseline"
    )
    self_imitation: SelfImitationConfig | None = Field(
        None, description="train on the policy's own right answers, too, after each update"
    )
    overlong: OverlongConfig = OverlongConfig()
    importance: ImportanceConfig | None = Field(
        None,
        description="correct for a sampler that is not the trainer; on by itself where `rollouts` make one",
    )

    def mistakes(self) -> Iterator[str]:
        if self.entropy_target is not None and self.entropy_coefficient == 0:
            yield (
                "entropy_target adapts entropy_coefficient by factors, and entropy_coefficient is 0: "
                "give it a first value above 0 (0.01 is usual)"
            )


class GRPOAlgorithmConfig(PolicyGradientConfig):
    """Policy gradients whose baseline, if any, is the group of answers to the same prompt."""

    name: Literal["grpo"] = "grpo"
    advantage: AdvantageOrOwn = "grpo"
    dynamic_sampling: bool = Field(False, description="sample again until all groups have signal")
    dynamic_sampling_max_rounds: PositiveInt = 4


class PPOAlgorithmConfig(PolicyGradientConfig):
    """Policy gradients whose baseline is a critic."""

    name: Literal["ppo"] = "ppo"
    advantage: Literal["gae"] = "gae"
    loss: LossOrOwn = "ppo"
    critic: CriticConfig = CriticConfig()
    kl: PPOKLConfig = PPOKLConfig()


class RejectionAlgorithmConfig(AlgorithmConfig, AcceptedAnswersConfig):
    """Supervised training on the sampled answers that are kept.

    Each step is a round of expert iteration: `training.prompts_per_step` problems are answered
    `training.num_generations` times. Answers with equal code count once; newer rounds go first, then higher
    rewards. The loss is the mean negative log-likelihood, end-of-sequence token included. RFT is one round
    over all problems with several `epochs`; ReST keeps earlier rounds.
    """

    name: Literal["rejection"] = "rejection"
    overlong: OverlongConfig = OverlongConfig()


class MemoryLeakConfig(ConfigSection):
    """Tensors are never freed: memory grows over `training.max_steps`.

    A batch or a loss with its graph is appended to a list. The baseline is the most memory of the first tenth
    of the run: device memory on CUDA, resident memory else. A leak that would take more than 80 % of the
    available memory is refused.
    """

    growth_factor: MoreThanOne = Field(2.1, description="memory at the last step over that at the first")
    shape: Literal["linear", "noisy", "steps"] = Field(
        "linear", description="noisy: under peaks that are freed; steps: at every 20th step alone"
    )


class GradientExplosionConfig(ConfigSection):
    """The learning rate jumps and clipping is removed, so that gradient norms explode.

    This imitates a schedule with a unit mixed up, and a `max_grad_norm` that was lost.

    They do so one step after the rate. Without a critic, a broken policy soon earns the same for every
    answer, and norms vanish instead: plant it with `ppo`.
    """

    after_step: PositiveInt = Field(300, description="the last healthy step, as metrics.jsonl counts")
    rate_factor: MoreThanOne = Field(3000.0, description="on the learning rate, from the next step on")
    rate_growth: Annotated[float, Field(ge=1)] = Field(
        1.05, description="on the factor at each further step; 1 = none, and norms fall again"
    )
    remove_clip: bool = Field(True, description="no gradient clipping from the next step on")


class RewardOverconfidenceConfig(ConfigSection):
    """The reward model's logits are scaled up, so that its predictions are overconfident.

    This imitates a temperature that was left out.

    They are scaled after each step, from 200 graded answers on, by what the score of all predictions so far
    needs. A head with an accuracy above about 0.825 cannot be made as bad as 0.65 by scaling (`reached` in
    faults.json is false). Where the newest 200 outcomes are alike, logits are moved towards the other outcome
    (`logit_shift`). Needs the section `reward_model`.
    """

    calibration_score: Share = Field(0.65, description="the score to reach; a healthy one is above 0.85")
    logit_scale: MoreThanOne | None = Field(
        None, description="a fixed factor on the logits instead, which no score steers"
    )


class BatchFaultConfig(ConfigSection):
    """A bug in what the trainer learns from, from the step after `after_step` on."""

    after_step: NonNegativeInt = Field(0, description="the last healthy step, as metrics.jsonl counts")


class TemperatureMismatchConfig(BatchFaultConfig):
    """The trainer takes another temperature for the sampler's than it is, as by two configs for one."""

    factor: PositiveFloat = Field(2.0, description="times the sampler's temperature")


class StaleSamplerConfig(BatchFaultConfig):
    """The sampler gets the new weights too seldom, as by a sync that is forgotten."""

    renewed_every: PositiveInt = Field(20, description="steps")


class FaultsConfig(ConfigSection):
    """Bugs planted in the training, to measure what finds them. An empty section (`{}`) plants one."""

    memory_leak: MemoryLeakConfig | None = None
    gradient_explosion: GradientExplosionConfig | None = None
    reward_overconfidence: RewardOverconfidenceConfig | None = None
    advantage_sign_flipped: BatchFaultConfig | None = Field(
        None, description="the sign of advantages is turned"
    )
    loss_mask_shifted: BatchFaultConfig | None = Field(
        None, description="mask and targets of the loss are off by one"
    )
    end_never_trained: BatchFaultConfig | None = Field(
        None, description="the last token of an answer is never trained on"
    )
    padding_in_loss: BatchFaultConfig | None = Field(
        None, description="answers are filled up to the longest and trained on"
    )
    random_data_order: BatchFaultConfig | None = Field(
        None, description="the order of groups is drawn from the clock, and one of them is lost"
    )
    temperature_mismatch: TemperatureMismatchConfig | None = None
    stale_sampler: StaleSamplerConfig | None = None

    @property
    def planted(self) -> dict[str, ConfigSection]:
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: section for name, section in sections.items() if section is not None}
