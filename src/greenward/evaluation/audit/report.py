"""What an audit found, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from greenward.evaluation.audit.calls import Signature


class Outcome(str, Enum):
    """What a function did with an answer."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    POISONED = "poisoned"  # later answers were judged wrongly
    RAISED = "raised"  # a trainer would stop here
    KILLED = "killed"  # its process or that process's parent ended, or gave a garbled reply
    HUNG = "hung"


@dataclass(frozen=True)
class Trial:
    """One answer thrown at the function. `why` says what is wrong if the outcome is not the sound one."""

    answer: str
    family: str
    task_id: str
    outcome: Outcome
    score: float | None
    detail: str
    why: str


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: a trial of each cheat and of each honest answer.

    A score counts as accepted from halfway between that of the plainest wrong answer and that of the
    reference; that of an answer with a `rival` if it is higher, and of a wrong one if it is as high.
    `told_apart` says whether any reference scored above the wrong answer. `left_out` names the kind of tasks
    on which that never happened, where it did on the other kind.
    """

    function: str
    signature: Signature
    presentation: str
    cheats: tuple[Trial, ...]
    honest: tuple[Trial, ...]
    told_apart: bool = True
    left_out: str = ""

    @property
    def accepted(self) -> tuple[Trial, ...]:
        """Cheats that were rewarded, or that made the function reward others wrongly."""
        return self._with(Outcome.ACCEPTED, Outcome.POISONED)

    @property
    def broken_by(self) -> tuple[Trial, ...]:
        """Cheats that killed or hung the function, or made it raise."""
        return self._with(Outcome.RAISED, Outcome.KILLED, Outcome.HUNG)

    @property
    def false_refusals(self) -> tuple[Trial, ...]:
        """Honest answers that were not accepted."""
        return tuple(trial for trial in self.honest if trial.outcome is not Outcome.ACCEPTED)

    @property
    def sound(self) -> bool:
        """Whether every cheat was refused and every honest answer accepted."""
        return not (self.accepted or self.broken_by or self.false_refusals)

    @property
    def says_nothing(self) -> bool:
        """Whether right answers were refused as wrong ones were: the data may not be what it expects."""
        return not self.told_apart and len(self.false_refusals) == len(self.honest)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            **asdict(self),
            "sound": self.sound,
            "says_nothing": self.says_nothing,
            "accepted": len(self.accepted),
            "broken_by": len(self.broken_by),
            "false_refusals": len(self.false_refusals),
        }

    def _with(self, *outcomes: Outcome) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.cheats if trial.outcome in outcomes)
