"""What a server is asked for, and which one."""

from __future__ import annotations

import random

from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.servers.requests import sampling_params, server_for


def params(request: GenerationRequest) -> dict[str, object]:
    return sampling_params(request, sampling=Sampling(0.7), most=12, stop_token_ids=(3,), stop=())


def test_a_request_is_drawn_as_the_job_says() -> None:
    found = params(GenerationRequest([1], seed=5))
    assert found == {
        "seed": 5,
        "logprobs": 0,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "max_tokens": 12,
        "stop_token_ids": [3],
        "stop": [],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "detokenize": False,
    }


def test_without_a_seed_the_best_token_is_taken() -> None:
    found = params(GenerationRequest([1], sampling=Sampling(0.5)))
    assert found["temperature"] == 0.0 and "logprobs" not in found and "seed" not in found


def test_what_a_request_has_of_its_own_wins_within_the_jobs_limit() -> None:
    own = GenerationRequest([1], seed=5, max_tokens=4, sampling=Sampling(0.5), stop_token_ids=(), stop=("#",))
    found = params(own)
    assert (found["temperature"], found["max_tokens"], found["stop_token_ids"]) == (0.5, 4, [])
    assert (found["stop"], found["detokenize"]) == (["#"], True)
    assert params(GenerationRequest([1], max_tokens=99))["max_tokens"] == 12


def placed(running: dict[str, int], waiting: int, most: int) -> list[str]:
    """Where requests go in turn, until none waits or all servers have enough."""
    places = []
    while waiting and (url := server_for(running, waiting, most)) is not None:
        running[url] += 1
        waiting -= 1
        places.append(url)
    return places


def test_neighbours_stay_together_and_servers_get_the_same_number() -> None:
    assert placed({"a": 0, "b": 0}, 8, 256) == ["a"] * 4 + ["b"] * 4


def test_a_server_with_less_to_do_gets_more() -> None:
    assert placed({"a": 4, "b": 0}, 4, 256) == ["b"] * 4


def test_a_fast_server_takes_what_waits() -> None:
    running = {"slow": 0, "fast": 0}
    assert len(placed(running, 100, 10)) == 20
    running["fast"] = 0
    assert placed(running, 80, 10) == ["fast"] * 10


def test_without_a_server_nobody_is_asked() -> None:
    assert server_for({}, 3, 256) is None


def test_no_server_gets_more_than_its_share_or_its_most() -> None:
    stream = random.Random(0)
    for _ in range(1000):
        running = {str(url): stream.randrange(20) for url in range(stream.randint(1, 4))}
        waiting, most = stream.randint(1, 60), stream.randint(1, 20)
        total, before = sum(running.values()) + waiting, dict(running)
        places = placed(running, waiting, most)
        share = min(most, -(-total // len(running)))
        assert all(running[url] <= max(before[url], share) for url in running)
        assert len(places) == waiting or all(count >= share for count in running.values())
