"""Runs rl_loop or sl_loop of tinker-cookbook with rows and a renderer of our own. Run with: URL MODEL FOLDER rl|sl."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
from tinker_cookbook import model_info
from tinker_cookbook.recipes import rl_loop, sl_loop


def main(url: str, model: str, folder: str, which: str) -> None:
    rows = [
        {
            "question": f"What is {n}+1?",
            "answer": f"#### {n + 1}",
            "messages": [
                {"role": "user", "content": f"What is {n}+1?"},
                {"role": "assistant", "content": str(n + 1)},
            ],
        }
        for n in range(8)
    ]
    found: Any = datasets.DatasetDict(train=datasets.Dataset.from_list(rows))
    datasets.load_dataset = lambda *_, **__: found
    model_info.get_recommended_renderer_name = lambda _: "role_colon"
    # Any reward but a constant: an untrained model answers nothing right.
    rl_loop.get_reward = lambda response, _: float(len(response) % 2)
    options: dict[str, Any] = {
        "base_url": url,
        "log_path": str(Path(folder, which)),
        "model_name": model,
        "lora_rank": 8,
        "batch_size": 2,
        "save_every": 1,
        "max_steps": 3,
    }
    if which == "rl":
        options |= {"group_size": 4, "max_tokens": 12, "loss_fn": "importance_sampling"}
        rl_loop.main(rl_loop.Config(**options))
    else:
        sl_loop.main(sl_loop.Config(**options))


if __name__ == "__main__":
    main(*sys.argv[1:])
