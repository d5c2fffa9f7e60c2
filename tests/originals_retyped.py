"""Files and command lines of the original systems, retyped from their descriptions: names and values alone."""

GRPO_CODE_EXECUTION = """
model: {id: Qwen/Qwen3-1.7B, cache_dir: ./model_cache}
seed: 42
lora: {task_type: CAUSAL_LM, r: 16, lora_alpha: 32, target_modules: all-linear}
training_args:
  output_dir: checkpoints/grpo_code_execution
  learning_rate: 0.00002
  per_device_train_batch_size: 8
  gradient_accumulation_steps: 2
  max_prompt_length: 512
  max_completion_length: 512
  num_generations: 2
  optim: adamw_8bit
  num_train_epochs: 1
  gradient_checkpointing: False
  dataloader_pin_memory: True
  remove_unused_columns: False
  logging_steps: 1
  max_steps: 120
wandb: {enabled: True, project_name_prefix: qwen-code-execution-grpo}
evaluation:
  enabled: True
  enabled_initial: True
  enabled_final: True
  num_questions: 20
  eval_interval_steps: 20
  consistent_questions: true
  dataset_path: null
  use_sanitized: True
  test_split: test
  timeout_seconds: 10
  max_memory_mb: 128
  safe_execution: True
  max_new_tokens: 512
  temperature: 0.2
  do_sample: True
  save_results: True
  results_dir: ./eval_results
  verbose: True
dataset: {size: 1000}
execution: {timeout: 3, debug_completions: 3}
rewards:
  success_with_output: 1.0
  success_no_output: 0.5
  syntax_error: -0.5
  runtime_error: -1.0
  timeout_error: -1.0
vllm:
  enabled: True
  server:
    {host: localhost, port: 8000, gpu_memory_utilization: 0.85, max_model_len: 2048, tensor_parallel_size: 1,
     max_num_batched_tokens: 4096, max_num_seqs: 32, swap_space: 4, dtype: float16, trust_remote_code: True,
     offline_mode: True, disable_log_requests: True, disable_log_stats: False}
  client: {base_url: "http://localhost:8000/v1", timeout: 60, max_retries: 3}
  generation:
    grpo_completions:
      {max_tokens: 512, temperature: 0.8, top_p: 0.9, frequency_penalty: 0.0, presence_penalty: 0.0,
       stop: ["```"]}
    mbpp_evaluation:
      {max_tokens: 512, temperature: 0.2, top_p: 0.95, frequency_penalty: 0.0, presence_penalty: 0.0,
       stop: ["def "]}
  integration:
    {use_for_grpo_completions: True, use_for_evaluation: True, auto_start_server: True, wait_for_server: 30,
     fallback_to_hf: True, log_performance_comparison: True}
"""

# As its README shows it: the parts that the seed of the project repeats.
GRPO_SHORT = """
model: {id: "Qwen/Qwen2.5-1.5B", cache_dir: "./model_cache"}
training_args: {learning_rate: 0.00002, per_device_train_batch_size: 8, max_steps: 90, num_generations: 2}
evaluation: {enabled: true, num_questions: 5, eval_interval_steps: 20, temperature: 0.2, timeout_seconds: 10}
vllm: {enabled: false, gpu_memory_utilization: 0.85, max_model_len: 2048}
"""

GRPO_CODE_GAME = """
generator_model: {id: Qwen/Qwen3-1.7B, cache_dir: ./model_cache}
guesser_model: {id: Qwen/Qwen2.5-1.5B, cache_dir: ./model_cache}
lora: {task_type: CAUSAL_LM, r: 16, lora_alpha: 32, target_modules: [q_proj, v_proj, k_proj, o_proj]}
icl: {memory_size: 16, refresh_every: 5, snapshot_max: 10, p_latest: 0.8}
game: {timeout: 10}
generation: {generator_max_tokens: 512, guesser_max_tokens: 256, temperature: 0.8, top_p: 1.0, top_k: -1,
             do_sample: true}
training: {num_steps: 50, games_per_step: 8, save_interval: 10, checkpoint_dir: ./checkpoints/game}
training_args:
  {learning_rate: 0.00002, per_device_train_batch_size: 4, gradient_accumulation_steps: 2, num_generations: 2,
   max_prompt_length: 512, max_completion_length: 512, optim: adamw_torch, num_train_epochs: 1,
   gradient_checkpointing: true, dataloader_pin_memory: true, remove_unused_columns: false, logging_steps: 1,
   max_steps: 50, output_dir: ./outputs/game}
dataset: {size: 100}
wandb: {enabled: false, project_name_prefix: grpo-code-game-icl}
"""

SPIRAL_SELF_PLAY = """
seed: 42
model: {id: Qwen/Qwen2.5-1.5B, cache_dir: ./model_cache}
lora: {task_type: CAUSAL_LM, r: 16, lora_alpha: 32, target_modules: all-linear}
training:
  {num_steps: 100, learning_rate: 0.000001, games_per_step_v100: 2, games_per_step_other: 4, rae_alpha: 0.95,
   gradient_clip_norm: 1.0, save_interval: 50, checkpoint_dir: checkpoints/spiral_self_play}
wandb: {enabled: True, project_name_prefix: spiral-self-play}
evaluation:
  {enabled: True, enabled_initial: True, enabled_final: True, enabled_interval: True, eval_interval_steps: 10,
   consistent_questions: true, num_questions: 10, timeout_seconds: 5, max_new_tokens: 256, temperature: 0.2,
   do_sample: True, dataset_path: null, use_sanitized: True, test_split: test, save_results: True,
   results_dir: ./eval_results/spiral_self_play, verbose: True}
"""

SPIRAL_CODE_GAME = """
model: {id: Qwen/Qwen3-4B, cache_dir: ./model_cache}
lora: {task_type: CAUSAL_LM, r: 16, lora_alpha: 32, target_modules: [q_proj, v_proj]}
game: {timeout: 3}
generation: {max_new_tokens: 400, temperature: 1.0, top_p: 1.0, top_k: -1, do_sample: true,
             generator_max_tokens: 1024, guesser_max_tokens: 500}
training:
  {num_steps: 100, optimizer: AdamW, learning_rate: 0.000001, learning_rate_scheduler: constant, adam_beta1: 0.9,
   adam_beta2: 0.95, weight_decay: 0.0, gradient_clip_norm: 1.0, batch_size: 128, games_per_step_v100: 2,
   games_per_step_other: 4, rae_alpha: 0.95, discount_factor: 1.0, inner_proximal_update_epochs: 2,
   kl_loss_coefficient: 0.0, kl_penalty_coefficient: 0.0, policy_clipping_parameter: 0.2, save_interval: 20,
   checkpoint_dir: checkpoints/spiral_code_game}
"""

DQN = """
environment: {max_steps: 50, vocab_size: 5000, render_frequency: 100}
agent:
  {state_dim: 520, action_dim: 5000, hidden_dim: 512, learning_rate: 0.0001, gamma: 0.99, epsilon_start: 1.0,
   epsilon_end: 0.01, epsilon_decay: 0.995, buffer_capacity: 50000, batch_size: 64, min_buffer_size: 1000,
   target_update_frequency: 10, device: cpu}
training:
  {num_episodes: 5000, max_timesteps: 50, train_frequency: 1, eval_frequency: 50, save_frequency: 100,
   log_frequency: 10, log_dir: experiments/logs, checkpoint_dir: experiments/models, save_best_only: false}
reward: {type: code_quality, correctness_weight: 10.0, quality_weight: 2.0, efficiency_weight: 1.0,
         progress_weight: 0.5}
evaluation: {num_episodes: 20, deterministic: true, render: false}
data: {problems_file: data/examples/training_problems.json, eval_problems_file: data/examples/eval_problems.json}
seed: 42
verbose: true
"""

RLDK = """
model: 7b
dataset: code_bugs
learning_rate: 1e-5
max_grad_norm: 1.0
seed: 42
"""

MBPP_EVALUATION = """
enabled: true
num_questions: 10
eval_at_start: true
eval_at_end: true
eval_interval_steps: null
dataset_path: null
use_sanitized: true
test_split: test
timeout_seconds: 10
temperature: 0.2
do_sample: true
"""

# hydra's tree of CodeRepairRL, by the names of its files.
CODE_REPAIR = {
    "grpo_config.yaml": """
defaults: [_self_, run: repo_repair, model: small_qwen, grpo: multi_turn_gspo, agent: nano]
hydra: {job: {chdir: false}}
""",
    "sft_config.yaml": """
defaults: [_self_, model: small_qwen, sft: default]
run: {wandb_project: SWE-Gym-SFT, dataset_name: ASSERT-KTH/SWE-Gym-Nano-SFT, max_seq_length: 8192,
      reward_min: 0.2, output_model_name: null, push_to_hub: true}
hydra: {job: {chdir: false}}
""",
    "run/repair.yaml": "task_type: repair\ndataset_type: stack\ndataset_name: ASSERT-KTH/stack-smol-docstrings\n",
    "run/repo_repair.yaml": "task_type: repo_repair\ndataset_type: swe_gym\ndataset_name: SWE-Gym/SWE-Gym\n",
    "run/detection.yaml": "task_type: detection\ndataset_type: primevul\ndataset_name: ASSERT-KTH/PrimeVul\n",
    "model/small_qwen.yaml": """
model_name: Qwen/Qwen3-1.7B
attn_implementation: flash_attention_2
load_in_4bit: true
unsloth_max_seq_length: null
lora: true
lora_dropout: 0.0
r: 32
lora_alpha: 64
target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
""",
    "grpo/single_turn.yaml": """
use_vllm: true
vllm_mode: server
vllm_server_host: 127.0.0.1
multi_turn: false
mask_tool_responses: false
learning_rate: 1e-4
adam_beta1: 0.9
adam_beta2: 0.99
weight_decay: 0.1
warmup_ratio: 0.1
lr_scheduler_type: constant_with_warmup
optim: paged_adamw_8bit
bf16: true
fp16: false
disable_dropout: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
num_generations: 4
generation_batch_size: 4
max_prompt_length: 256
max_completion_length: 256
beta: 0.02
scale_rewards: false
loss_type: grpo
use_liger_loss: true
gradient_checkpointing: false
num_train_epochs: 3
max_steps: -1
save_steps: 20
logging_steps: 1
save_total_limit: 100
max_grad_norm: 0.1
resume_from_checkpoint: null
report_to: wandb
run_name: ???
log_completions: true
label_names: [labels]
ddp_find_unused_parameters: false
ddp_bucket_cap_mb: 16
""",
    "grpo/multi_turn.yaml": """
defaults: [single_turn]
vllm_mode: async_server
multi_turn: true
max_prompt_length: 1024
max_completion_length: 7168
num_generations: 8
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
loss_type: dr_grpo
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: true}
""",
    "grpo/multi_turn_gspo.yaml": """
defaults: [multi_turn]
loss_type: grpo
importance_sampling_level: sequence
scale_rewards: true
epsilon: 3e-4
steps_per_generation: 1
num_iterations: 1
beta: 0.0
""",
    "agent/nano.yaml": """
model: null
api_base: http://localhost:8000/v1
thinking: false
token_limit: 8192
tool_limit: 20
temperature: 0.7
top_p: 0.8
min_p: 0.01
top_k: 20
verbose: false
log: false
""",
    "sft/default.yaml": """
output_dir: outputs/sft_model
num_train_epochs: 3
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 2e-5
warmup_ratio: 0.1
lr_scheduler_type: linear
max_grad_norm: 1.0
weight_decay: 0.01
bf16: true
fp16: false
gradient_checkpointing: true
logging_steps: 1
logging_first_step: true
save_steps: 500
eval_steps: 500
report_to: wandb
run_name: ${model.model_name}-SFT
remove_unused_columns: false
dataloader_pin_memory: false
dataset_text_field: text
max_length: 8192
packing: false
dataset_num_proc: 4
dataset_kwargs: {}
""",
}

# (docstring, [(inputs, output) of a test]) of the problems of the DQN; inputs of several arguments are a list.
DQN_TRAINING: dict[str, tuple[str, list[tuple[object, object]]]] = {
    "add_numbers": ("Return the sum of two numbers.", [([2, 3], 5), ([-1, 1], 0)]),
    "is_even": ("Return True if number is even.", [(2, True), (3, False)]),
    "max_of_three": (
        "Return the maximum of three numbers.",
        [([1, 2, 3], 3), ([3, 2, 1], 3), ([-1, -2, -3], -1)],
    ),
    "count_vowels": ("Count the vowels (a, e, i, o, u).", [("hello", 2), ("HELLO", 2), ("xyz", 0)]),
    "reverse_string": ("Return the reverse.", [("ab", "ba"), ("", "")]),
    "factorial": ("Return the factorial of n.", [(0, 1), (1, 1), (5, 120)]),
    "is_palindrome": (
        "Return True if string is a palindrome.",
        [("noon", True), ("hello", False), ("", True)],
    ),
    "sum_list": ("Return the sum of all numbers in a list.", [([1, 2, 3], 6), ([0], 0), ([], 0)]),
}
DQN_EVALUATION: dict[str, tuple[str, list[tuple[object, object]]]] = {
    "multiply": ("Return the product of two numbers.", [([2, 3], 6), ([0, 5], 0), ([-2, 4], -8)]),
    "is_prime": ("Return True if number is prime.", [(2, True), (4, False), (17, True), (1, False)]),
    "find_min": ("Return the smallest number of a list.", [([3, 1, 2], 1), ([5], 5), ([-1, -5], -5)]),
}


def dqn_rows(problems: dict[str, tuple[str, list[tuple[object, object]]]]) -> list[dict[str, object]]:
    """The rows of a problem file of the DQN."""
    return [
        {"function_name": name, "docstring": doc, "test_cases": list(map(list, cases)), "starter_code": ""}
        for name, (doc, cases) in problems.items()
    ]


# Every command of RLDK with the arguments that it needs, and each of its options with a value.
RLDK_COMMANDS: dict[str, tuple[str, ...]] = {
    "monitor --stream run.jsonl --rules grpo_safe": (
        "--once", "--from-wandb entity/project", "--from-mlflow 1", "--report report.json", "--preset grpo",
        """--field-map '{"my_reward": "reward_mean"}'""", "--regex trl", "--pid 4711", "--alerts alerts.jsonl",
        "--alerts-txt alerts.txt", "--reward-health-window 10", "--kill-timeout-sec 5", "--http-timeout-sec 5",
        "--retries 0",
    ),
    "emit --to run.jsonl --name loss --value 1": ("--step 1", "--time 1", "--run-id a", "--tags {}", "--meta {}"),
    "ingest run.jsonl": (
        "-a trl", "--adapter flexible", "-o out.jsonl", """--field-map '{"my_reward": "reward_mean"}'""", "-c config.yaml",
        "--config-file config.yaml", "--validation-mode strict", "--required-fields step,reward", "--validate",
        "--no-validate", "-v",
    ),
    "diff --a run_1 --b run_2 --signals gradient_norm": (
        "--signals kl_mean", "--preset trl", """--field-map '{"my_reward": "reward_mean"}'""", "-o diff_analysis",
    ),
    "diff -a run_1 -b run_2": (),
    "check-determinism --cmd true": (
        "-c true", "-m loss", "--compare loss", "-s 1,2", "--steps 1,2", "--stride 50", "-r 5", "--replicas 5", "--runs 2",
        "-t 0.01", "--tolerance 0.01", "-d cpu", "--device cpu", "-o determinism_analysis", "--gate",
    ),
    "determinism --cmd true": ("--compare loss",),
    "bisect --good v1 --bad HEAD": (
        "--cmd true", "--metric loss", "--cmp '> 0.2'", "--window 100", "--shell-predicate true",
    ),
    "reward-health --run run_1": (
        "--reference run_2", "-o reward_analysis", "--preset trl", """--field-map '{"my_reward": "reward_mean"}'""",
        "--reward-col reward_mean", "--step-col step", "--threshold-drift 0.1", "--threshold-saturation 0.8",
        "--threshold-calibration 0.7", "--threshold-shortcut 0.6", "--threshold-leakage 0.3", "--response-col response",
        "--length-col length", "--threshold-length-bias 0.4", "--enable-length-bias-detection",
        "--disable-length-bias-detection", "--gold gold.jsonl", "--gold-col gold", "--auto-gold", "--overopt-window 100",
        "--overopt-delta-threshold 0.2", "--overopt-min-samples 100", "--gate",
    ),
    "reward reward-health run": ("--scores run_1", "--gate"),
    "reward reward-health gate": ("--from health.json",),
    "reward reward-drift a.jsonl b.jsonl": ("-p prompts.jsonl",),
    "reward reward-drift --scores-a a.jsonl --scores-b b.jsonl": (),
    "reward-drift a.jsonl b.jsonl": (),
    "reward length-bias --run-path run_1": (
        "--response-col response", "--reward-col reward_mean", "--length-col length", "--threshold 0.35",
        "--sample-size 10", "--adapter trl", "--output-dir out", "--generate-card", "--tokenizer-name gpt2", "--seed 1",
    ),
    "evals evaluate run_1": (
        "-s quick", "-o out", "--output-column output", "--events-column events", "--min-samples 10", "--timeout 300",
        "--column-mapping {}", "--preset trl", """--field-map '{"my_reward": "reward_mean"}'""",
    ),
    "evals list-suites": (),
    "evals validate-data run.jsonl": (),
    "evals validate run.jsonl": (),
    "eval --run run_1": ("--suite quick", "-o eval_results", "--seed 42", "--sample-size 10", "--no-wandb"),
    "replay --run run_1": (
        "--command true", "--metrics loss", "--tolerance 0.01", "--max-steps 50", "-o replay_results", "--device cpu",
        "--no-wandb",
    ),
    "card determinism run_1": ("-o cards", "--preset trl", """--field-map '{"my_reward": "reward_mean"}'"""),
    "card drift run_1 run_2": ("-o cards",),
    "card reward run_1": ("-o cards",),
    "compare-runs run_1 run_2": (),
    "diff-ckpt run_1 run_2": (),
    "env-audit run_1": (),
    "log-scan run_1": (),
    "forensics compare-runs run_1 run_2": (),
    "forensics diff-ckpt run_1 run_2": (),
    "forensics env-audit run_1": (),
    "forensics log-scan run_1": (),
    "forensics kl-drift run_1": (
        "--drift-threshold 0.15", "--drift-window-size 100", "--reference-period 500", "--step-col step", "--kl-col kl_mean",
        "--kl-coef-col kl_coef",
    ),
    "forensics doctor run_1": (),
    "track NAME": ("-o runs", "--no-wandb", "--wandb-project mine", "--tags a", "--notes a", "-i"),
    "doctor": (),
    "seed --seed 42": ("--show", "--deterministic", "--env", "--validate"),
    "format-info": ("--adapter trl", "--examples"),
    "validate-format run.jsonl": ("--adapter trl", "--verbose"),
    "version": (),
}  # fmt: skip

# What one would type behind `greenward` who knows the scripts of the other three.
SCRIPTS = (
    "train ppo_code_fix --model 7b --dataset code_bugs --learning_rate 1e-5 --max_grad_norm 1.0 --seed 42",
    "train --config config.yaml",
    "train --config configs/grpo_code_execution.yaml",
    "train --config configs/spiral_self_play.yaml",
    "train grpo_code_execution vllm.enabled=true vllm.gpu_memory_utilization=0.85 vllm.max_model_len=2048",
    "train grpo_code_execution evaluation.num_questions=5 evaluation.eval_interval_steps=20 evaluation.temperature=0.2",
    "train grpo_code_execution evaluation.timeout_seconds=10",
    "train grpo_code_execution training_args.max_steps=90",
    "train --config configs/train_config.yaml",
    "eval --model runs/mine --problems eval_problems.json --num_episodes 50",
    "train dqn_code_generation --num_episodes 1000",
    "train dqn_code_generation agent.gamma=0",
    "train dqn_code_generation reward.type=sparse environment.vocab_size=5000",
    "train --config src/conf",
    "train grpo_code_repair run=repair",
    "train grpo_code_repair grpo.num_generations=8",
)

# The command lines of the READMEs of the originals.
COMMANDS = (
    "pip install transformers torch datasets black pylint",
    "python train_code_fix.py",
    "python train_code_fix.py --model 7b --dataset code_bugs --learning_rate 1e-5 --max_grad_norm 1.0 --seed 42",
    "rldk diff --a run_1 --b run_2 --signals gradient_norm,code_score",
    "rldk reward-health --run run_1 --output-dir code_analysis",
    "rldk evals --run run_1 --suite code --output-dir code_eval",
    "python grpo_code_execution.py --config configs/grpo_code_execution.yaml",
    "python grpo_code_game.py",
    "python spiral_self_play.py --config configs/spiral_self_play.yaml",
    "sbatch submit_grpo_training.sh",
    "python evaluation/tests/test_mbpp_system.py",
    "python tests/quick_test.py",
    "from evaluation import MBPPEvaluator",
    "detect_platform_and_gpu()",
    "pip install -r requirements.txt",
    "python -c \"import torch; import gym; import numpy; print('Installation successful!')\"",
    "python train.py --config configs/train_config.yaml",
    "python evaluate.py --model experiments/models/best_model.pt --problems data/examples/eval_problems.json --num_episodes 50",
    "agent.load('experiments/models/checkpoint_ep1000.pt')",
    "tensorboard --logdir=experiments/tensorboard",
    "pip install transformers",
    "pip install tensorboard",
    "uv run -m src.train_grpo run=repair",
    "run=detection",
    "run=repo_repair",
    "sbatch scripts/grpo/small_grpo_lora_train_job.sh",
    "sbatch scripts/grpo/medium_grpo_lora_train_job.sh",
    "accelerate launch --config_file scripts/deepspeed/zero3.yaml --module src.train_grpo",
    "uv run trl vllm-serve-async",
    "uv run -m src.train_sft",
    "sbatch scripts/sft/small_sft_train_job.sh",
    "uv run -m src.curate_sft_data",
    "uv run pytest",
)
