"""An agent's requests become sequences of tokens: what continues, what branches, and what is trained once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.rollout.endpoint.places import Place, continued_tokens
from lorarl_trainer.rollout.endpoint.requests import ChatRequest, RefusedError, TokensRequest
from lorarl_trainer.rollout.played import PlayedSequence
from unit.trainer.rollout.talk import Talk

GO = {"role": "user", "content": "Go."}
AND = {"role": "user", "content": "And?"}
SAY = {"role": "user", "content": "Say it."}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
LONG: Any = {"spec.rollout.maxPromptTokens": 2000, "spec.rollout.maxResponseTokens": 1000}
MARK = "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def answer(call: str) -> dict[str, str]:
    return {"role": "tool", "content": "bright", "tool_call_id": call}


def test_a_history_that_is_cut_begins_a_further_sequence(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> None:
        first = (await talk.chat(GO)).message
        second = (await talk.chat(GO, first, AND)).message
        trimmed = [AND, second, SAY]  # the oldest messages have gone
        third = (await talk.chat(*trimmed)).message
        await talk.chat(*trimmed, third, AND)

    asyncio.run(play())
    (_, _, trained), (prompt, response, later) = talk.sequences()
    assert trained == "I say 1<|im_end|>I say 2<|im_end|>"
    assert prompt.endswith("And?<|im_end|>\n<|im_start|>assistant\nI say 2" + MARK.format("Say it."))
    assert response == "I say 3" + MARK.format("And?") + "I say 4<|im_end|>"
    assert later == "I say 3<|im_end|>I say 4<|im_end|>"
    assert talk.played.course.sequences == 2 and talk.played.course.turns == 4


def test_a_branch_has_the_tokens_before_it_and_trains_only_its_own(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> None:
        first = (await talk.chat(GO)).message
        second = (await talk.chat(GO, first, AND)).message
        await talk.chat(GO, first, AND, second, SAY)
        other = (await talk.chat(GO, first, SAY)).message  # back to before the second turn
        again = (await talk.chat(GO, first, AND)).message  # the second turn once more: best of two
        assert again != second
        await talk.chat(GO, first, SAY, other, AND)

    asyncio.run(play())
    (one, whole, trained), (two, _, branch), (three, best, own) = talk.sequences()
    assert one == two == three
    assert whole.startswith("I say 1" + MARK.format("And?") + "I say 2")
    assert trained == "".join(f"I say {n}<|im_end|>" for n in (1, 2, 3))
    assert branch == "I say 4<|im_end|>I say 6<|im_end|>"
    assert best == "I say 1" + MARK.format("And?") + "I say 5<|im_end|>" and own == "I say 5<|im_end|>"
    shared = [first.response[: len("I say 1")] for first in talk.played.sequences]
    assert shared[0] == shared[1] == shared[2]
    assert all(sum(one.mask) == sum(len(turn.tokens) for turn in one.turns) for one in talk.played.sequences)


def test_requests_side_by_side_and_of_other_sessions_are_sequences(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> None:
        left, right = await asyncio.gather(talk.chat(GO), talk.chat(GO))
        assert {left.number, right.number} == {1, 2}
        both = [talk.chat(GO, one.message, AND) for one in (right, left)]
        await asyncio.gather(*both, talk.chat(GO, left.message, AND, session="7"))

    asyncio.run(play())
    found = talk.sequences()
    assert [trained.count("I say") for _, _, trained in found] == [2, 2, 1]
    assert found[2][0].count("I say 1") == 1, "what another session said is a prompt here"


def test_what_said_the_same_twice_is_continued_where_it_ends(tmp_path: Path) -> None:
    talk = Talk(tmp_path, ["A", "A", "B", "C"])

    async def play() -> None:
        first, second = await asyncio.gather(talk.chat(GO), talk.chat(GO))
        assert first.message == second.message
        await talk.chat(GO, first.message, AND)
        await talk.chat(GO, first.message, AND)

    asyncio.run(play())
    assert [trained for _, _, trained in talk.sequences()] == ["A<|im_end|>B<|im_end|>", "A<|im_end|>C<|im_end|>"]


def test_tokens_continue_the_longest_sequence_that_they_begin_with(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> None:
        first = await talk.tokens([5, 6])
        known = [5, 6, *first.tokens]
        second = await talk.tokens([*known, 7])
        await talk.tokens([*known, 7, *second.tokens])  # continues
        await talk.tokens([*known, 8])  # a branch
        await talk.tokens([6])
        await talk.tokens([*known, 7, *second.tokens], session="another")
        await asyncio.gather(*(talk.tokens([*known, 8]) for _ in range(2)))

    asyncio.run(play())
    found = talk.played.sequences
    assert [len(one.turns) for one in found] == [3, 1, 1, 1, 1, 1]
    assert [len(one.row.prompt_ids) for one in found[:3]] == [2, 2, 1]
    shared = len(found[0].turns[0].tokens)
    assert found[1].response[:shared] == found[0].response[:shared] and not any(found[1].mask[: shared + 1])


def test_the_limits_hold_for_the_whole_episode_and_each_has_its_name(tmp_path: Path) -> None:
    talk = Talk(tmp_path, environment={"maxTurns": 3, "maxSequences": 2})

    async def play() -> None:
        await asyncio.gather(talk.chat(GO), talk.chat(AND))
        with pytest.raises(RefusedError, match="raise maxSequences") as refused:
            await talk.chat(SAY)
        assert (refused.value.cause, refused.value.code) == ("branch", "too_many_sequences")
        await talk.chat(GO, {"role": "assistant", "content": "I say 1"}, AND)
        with pytest.raises(RefusedError, match="its 3 turns of the model") as refused:
            await talk.chat(GO)
        assert refused.value.limit == "turns"

    asyncio.run(play())
    assert talk.played.ended == "turns" and talk.said.met_limit


def test_a_long_history_takes_room_of_the_turns_or_ends_the_episode(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> None:
        with pytest.raises(RefusedError) as refused:
            await Talk(tmp_path).chat({"role": "user", "content": "x" * 100})
        assert refused.value.cause == "too_long", "the first request"
        await talk.chat(GO)
        await talk.chat({"role": "user", "content": "x" * 100})
        with pytest.raises(RefusedError) as refused:
            await talk.chat({"role": "user", "content": "x" * 320})
        assert refused.value.limit == "tokens"

    asyncio.run(play())
    first, second = talk.played.sequences
    assert talk.rooms == [256, 256 - (len(second.row.prompt_ids) - 64)]
    assert talk.played.ended == "tokens" and not first.cut and talk.said.refusal is None


def test_a_request_that_is_lost_is_answered_once(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> None:
        asked = ChatRequest((GO,))
        await talk.said.answer(asked, "", lambda: True)
        await talk.said.answer(asked, "other", lambda: False)  # of another part of the agent
        again = await talk.said.answer(asked, "", lambda: False)
        assert again.number == 1
        assert (await talk.said.answer(asked, "", lambda: False)).number == 3

    asyncio.run(play())
    assert len(talk.played.sequences) == 3


def test_the_ids_of_calls_decide_between_turns_that_made_the_same_call(tmp_path: Path) -> None:
    talk = Talk(tmp_path, ["A" + CALL, "B" + CALL, "of B", "of A", "of A, once more", "of the first"], **LONG)

    async def play() -> None:
        tools = (LOOK,)
        one, two = [turn.message for turn in await asyncio.gather(*(talk.chat(GO, tools=tools) for _ in range(2)))]
        assert [call["id"] for message in (one, two) for call in message["tool_calls"]] == ["call00001", "call00002"]
        await talk.chat(GO, {**two, "content": ""}, answer("call00002"), tools=tools)
        await talk.chat(GO, {**one, "content": ""}, answer("call00001"), tools=tools)
        await talk.chat(GO, {**one, "content": ""}, {**answer("call00001"), "content": "dim"}, tools=tools)
        without = {"role": "assistant", "content": "", "tool_calls": [one["tool_calls"][0] | {"id": None}]}
        await talk.chat(GO, without, answer("call00001"), tools=tools)

    asyncio.run(play())
    first, second, *further = [trained for _, _, trained in talk.sequences()]
    assert first == f"A{CALL}<|im_end|>of A<|im_end|>" and second == f"B{CALL}<|im_end|>of B<|im_end|>"
    assert further == ["of A, once more<|im_end|>", "of the first<|im_end|>"], "where a turn has been continued"
    assert all(one.startswith("A" + CALL) for _, one, _ in talk.sequences()[2:])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_client_may_send_the_calls_of_one_turn_one_by_one(tmp_path: Path, order: tuple[int, int]) -> None:
    talk = Talk(tmp_path, [CALL + CALL.replace("{}", '{"x": 1}'), "A", CALL, "B"], **LONG)

    async def play() -> None:
        said: list[Any] = [GO]
        for calls in (order, (0,)):
            turn = (await talk.chat(*said, tools=(LOOK,))).message
            for number in calls:
                call = turn["tool_calls"][number]
                said += [{"role": "assistant", "content": "", "tool_calls": [call]}, answer(call["id"])]
            said += [(await talk.chat(*said, tools=(LOOK,))).message, AND]

    asyncio.run(play())
    [(_, _, trained)] = talk.sequences()
    assert trained.count("<|im_end|>") == 4


def test_answers_need_the_ids_of_calls_as_they_came(tmp_path: Path) -> None:
    async def play() -> None:
        talk = Talk(tmp_path, [CALL], **LONG)
        turn = (await talk.chat(GO, tools=(LOOK,))).message
        with pytest.raises(RefusedError, match="of a call of the model, as it came, and has 'toolu_1'"):
            await talk.chat(GO, turn, answer("toolu_1"), tools=(LOOK,))

    asyncio.run(play())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("branch", "maxSequences allows. It continues a turn that another request has continued or is continuing. "),
        ("tools", "maxSequences allows. Its tools are others. Send all messages and tools as they were"),
        ("both", "Its tools are others, and its messages are others from messages[1] on. Send all"),
        ("messages", "maxSequences allows. Its messages are others from messages[1] on. Send all"),
        ("tokens", "maxSequences allows. Send all tokens up to the end of a turn as they were"),
        ("branch of tokens", "maxSequences allows. It continues a turn that another request has continued"),
    ],
)
def test_one_sequence_too_many_is_refused_with_what_helps(tmp_path: Path, how: str, said: str) -> None:
    talk = Talk(tmp_path, environment={"maxSequences": 2}, **LONG)

    async def play() -> None:
        first = await talk.chat(GO, tools=(LOOK,))
        await talk.chat(GO, first.message, AND, tools=(LOOK,))
        await talk.chat(SAY)  # whose tools are others than those of the nearest turn
        tokens = [*first.prompt_ids, *first.tokens]
        asked = {
            "branch": lambda: talk.chat(GO, first.message, SAY, tools=(LOOK,)),
            "tools": lambda: talk.chat(GO, first.message, AND),
            "both": lambda: talk.chat(GO, {"role": "assistant", "content": "No"}, AND),
            "messages": lambda: talk.chat(GO, {"role": "assistant", "content": "No"}, AND, tools=(LOOK,)),
            "tokens": lambda: talk.tokens(tokens[1:]),
            "branch of tokens": lambda: talk.tokens([*tokens, 9]),
        }
        with pytest.raises(RefusedError, match=r", or raise maxSequences$") as error:
            await asked[how]()
        assert said in str(error.value) and error.value.code == "too_many_sequences"

    asyncio.run(play())


def test_sequences_that_were_cut_stay_cut_beyond_the_last_turn(tmp_path: Path) -> None:
    talk = Talk(tmp_path, environment={"maxTurns": 2}, **{"spec.rollout.maxResponseTokens": 5})

    async def play() -> None:
        await talk.chat(GO)
        await talk.chat(AND)
        with pytest.raises(RefusedError) as refused:
            await talk.chat(SAY)
        assert refused.value.limit == "turns"

    asyncio.run(play())
    assert talk.played.ended == "turns"
    assert [one.completion(0).finished for one in talk.played.sequences] == [False, False]


def test_the_place_of_a_request_is_found_in_a_few_comparisons() -> None:
    class Counted(int):
        def __eq__(self, other: object) -> bool:
            counted.append(1)
            return int.__eq__(self, other)

        __hash__ = int.__hash__

    counted: list[int] = []
    sequence = PlayedSequence(EncodedRow(Row("p", None, {}, 1), list(map(Counted, range(100))), []))
    sequence.append(list(map(Counted, range(3000))), made=True)
    places = [Place(sequence, size, "", True) for size in range(30, 3001, 30)]
    asked = TokensRequest([*range(100), *range(3000), 7])
    assert continued_tokens(places, asked, "") is places[-1]
    assert len(counted) < 2 * 3100, "each token of the sequence, and not of each of its places"
    edited = TokensRequest([*range(100), *range(1500), 1, *range(1501, 3000)])
    assert continued_tokens(places, edited, "") is places[49]
    assert len(counted) < 4 * 3100
    assert continued_tokens(places, TokensRequest(range(50)), "") is None
