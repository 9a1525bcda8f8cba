"""What a start warns of, from all that looks at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lorarl_trainer.launch.build import OpenRun
from unit.trainer.planning.jobs import cpu_job


def test_what_several_find_is_said_once_and_in_their_order() -> None:
    def some(*texts: str, **more: Any) -> SimpleNamespace:
        return SimpleNamespace(warnings=list(texts), **more)

    model = SimpleNamespace(
        vocabulary=SimpleNamespace(tokenizer=SimpleNamespace(chat_template=None)),
        verdict=SimpleNamespace(slower=["trainer.backend is fsdp"]),
    )
    run: Any = SimpleNamespace(
        launch=SimpleNamespace(job=SimpleNamespace(spec=cpu_job())),
        workers=SimpleNamespace(spec=cpu_job()),
        prepared=SimpleNamespace(model=model, rows=some("few rows")),
    )
    stored: Any = SimpleNamespace(warnings=lambda step: [], doubts=lambda *_: ["a doubt"])
    built: Any = some("trainer.backend is fsdp", "a copy of the base", "few rows")
    resumed: Any = some("resumed", step=0, driver=SimpleNamespace(unfinished={}))
    said = OpenRun._warnings(run, stored, built, resumed)
    expected = ["a doubt", "trainer.backend is fsdp", "few rows", "a copy of the base", "resumed"]
    assert [one for one in said if one in expected] == expected
