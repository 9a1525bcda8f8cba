"""An episode without an engine or an agent: what is asked of its endpoint, and the sequences that follow."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openai

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import ToolFormat
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.data.tool_calls import CallParser
from lorarl_trainer.rollout.endpoint.conversation import Conversation, Speech
from lorarl_trainer.rollout.endpoint.replies import Turn
from lorarl_trainer.rollout.endpoint.requests import ChatRequest, TokensRequest
from lorarl_trainer.rollout.endpoint.server import Endpoint
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Completion
from support.tiny_tokenizers import TOOLS_CHATML, write_tokenizer
from unit.contract.manifests import manifest


class Talk:
    """An episode whose model says what a number of turns it has made, or what is given."""

    def __init__(
        self, folder: Path, says: Sequence[str] = (), tool_format: ToolFormat | None = None, **settings: Any
    ) -> None:
        environment = {"agent": "my_agent:play", "maxTurns": 20} | settings.pop("environment", {})
        lengths = {"spec.rollout.maxResponseTokens": 256, "spec.rollout.maxPromptTokens": 64} | settings
        spec = load_job(json.dumps(manifest({"spec.reward": None, "spec.environment": environment} | lengths))).spec
        self.tokenizer = load_tokenizer(write_tokenizer(folder / "base", template=TOOLS_CHATML))
        bridge = Bridge(PromptEncoder(self.tokenizer, chat_template=True, stop_ids=(3,)))
        decoders = partial(self.tokenizer.batch_decode, skip_special_tokens=True), self.tokenizer.batch_decode
        speech = Speech(bridge, *decoders, partial(CallParser, self.tokenizer, chosen=tool_format))
        self.played = Played([PlayedSequence(EncodedRow(Row("p", None, {}, 1), [1], []))])
        self.says, self.asked, self.rooms = says, 0, []
        self.spec = spec
        self.said = Conversation(spec, speech, self.played, self.ask, contextlib.nullcontext)

    async def ask(self, sequence: PlayedSequence, room: int, _: Sequence[int]) -> Completion:
        self.asked, self.rooms = self.asked + 1, [*self.rooms, room]
        text = self.says[self.asked - 1] if self.says else f"I say {self.asked}"
        await asyncio.sleep(0)  # others may ask meanwhile
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), 3][:room]
        return sequence.add(Completion(np.array(ids), np.full(len(ids), -0.5, np.float32), ids[-1] == 3, 0))

    async def chat(self, *messages: Any, session: str = "", **more: Any) -> Turn:
        return await self.said.answer(ChatRequest(tuple(messages), **more), session, lambda: False)

    async def tokens(self, ids: Sequence[int], session: str = "") -> Turn:
        return await self.said.answer(TokensRequest(list(ids)), session, lambda: False)

    def sequences(self) -> list[tuple[str, str, str]]:
        """Each sequence's prompt and response as text, and what of it is trained."""
        self.played.finish()
        decode = self.tokenizer.decode
        return [
            (
                decode(one.row.prompt_ids),
                decode(one.response),
                decode([token for token, made in zip(one.response, one.mask, strict=True) if made]),
            )
            for one in self.played.sequences
        ]

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[openai.AsyncOpenAI]:
        """Serve the episode, and yield OpenAI's client of it."""
        endpoint = Endpoint(self.spec, 1000)
        async with endpoint.serving():
            with endpoint.episode(self.said) as key:
                async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=key, max_retries=0) as client:
                    yield client
