"""What a run holds while it trains."""

from lorarl_trainer.session.checkpoints import FIRST_RESULTS, RESCUE_SECONDS, STEP_RESULTS, RunCheckpoints
from lorarl_trainer.session.session import Session, starting_curriculum, starting_kl_coefficient
from lorarl_trainer.session.step_clock import StepClock

__all__ = [
    "FIRST_RESULTS",
    "RESCUE_SECONDS",
    "STEP_RESULTS",
    "RunCheckpoints",
    "Session",
    "StepClock",
    "starting_curriculum",
    "starting_kl_coefficient",
]
