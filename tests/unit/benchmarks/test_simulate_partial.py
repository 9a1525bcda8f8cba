"""The simulation of answers that no step waits for."""

from __future__ import annotations

import numpy as np
import pytest

from simulate_partial import Answer, Engine, parser, simulate

SMALL = ["--prompts", "4", "--group", "2", "--mean", "20", "--longest", "100", "--slots", "8", "--steps", "30"]


def test_an_answer_that_ends_makes_room() -> None:
    engine = Engine(lambda running: 1.0 + running, token_seconds=0.0, slots=2)
    answers = [Answer(length, 0) for length in (3, 1, 2)]
    engine.run(answers, 100)
    assert all(answer.made == answer.length for answer in answers)
    assert engine.seconds == 3 * (1 + 2), "two run all the time"


def test_what_earlier_adapters_made_is_computed_again() -> None:
    engine = Engine(lambda running: 0.0, token_seconds=2.0, slots=1)
    engine.begin_step([Answer(5, 0, made=3), Answer(4, 0, made=4)])
    assert engine.seconds == 6.0


def test_no_step_waits_for_its_longest_answers() -> None:
    chosen = parser().parse_args(SMALL)
    alone, whole = simulate(chosen, 0, 100), simulate(chosen, 0, 10)
    assert whole.seconds == pytest.approx(alone.seconds) and set(alone.behind) == {0}
    early = simulate(chosen, 2, 10)
    assert np.mean(early.seconds) < 0.9 * np.mean(alone.seconds)
    assert len(early.behind) == len(alone.behind) == 30 * 4 * 2 and max(early.behind) > 0
