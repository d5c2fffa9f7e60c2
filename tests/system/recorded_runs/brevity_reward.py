"""A reward of the user's own for the recorded runs: short answers, with TRL's signature and one metric."""


def brevity(completions, task_id, log_metric=None, **columns):
    scores = [1.0 - len(text) / 200 for text in completions]
    if log_metric is not None:
        log_metric("shortest", max(scores))
    return scores
