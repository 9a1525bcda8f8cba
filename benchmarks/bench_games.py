"""Teaches a real model games of other people's packages, as the manifests in examples/games describe them.

python benchmarks/bench_games.py                     every game, three seeds, on one GPU; then docs/recipes.md
python benchmarks/bench_games.py --at-once 3         three runs share the GPU
python benchmarks/bench_games.py --render            writes docs/recipes.md and its picture again

It needs `lorarl env add textarena==0.7.4`. Raw figures are written after each run; the same command makes what is
missing. A game's score is the run's own evaluation: games of other seeds, played greedily.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "crds", "trainer_image")]

from figures import write_between  # noqa: E402
from lorarl_trainer.progress import METRICS, read_rows  # noqa: E402
from side_by_side.ours import commit  # noqa: E402
from side_by_side.processes import device, environment  # noqa: E402

GAMES = {"guess-the-number": "Guess The Number", "tower-of-hanoi": "Tower of Hanoi"}
RAW, DOCUMENT, PICTURE = Path("benchmarks/results/games.json"), Path("docs/recipes.md"), Path("docs/images/games.svg")
BEGIN, END = "<!-- games: written by benchmarks/bench_games.py -->", "<!-- end of the games -->"
MEASURED = {"score": "eval_score", "won": "eval_reward/won", "invalid": "eval_reward/invalid_moves"}
FORMS = {"score": "{:.2f}", "won": "{:.0%}", "invalid": "{:.2f}"}
"""How the table writes each of these."""
OF_STEPS = {"reward": "reward_mean", "turns": "episode/turns", "drift": "mean_abs_logprob_diff"}

type Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=1, help="runs that share the GPU")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="changes of the manifests")
    parser.add_argument("--out", type=Path, default=ROOT / RAW, help="raw figures, to which these are added")
    parser.add_argument("--render", action="store_true", help=f"only write {DOCUMENT} and its picture")
    chosen = parser.parse_args()
    if not chosen.render:
        make_missing(chosen)
    runs = read(chosen.out)
    if runs and chosen.out == ROOT / RAW:
        write_between(ROOT / DOCUMENT, BEGIN, END, lambda: markdown(runs))
        draw(runs, ROOT / PICTURE)


def read(raw: Path) -> list[Run]:
    """Return the runs that are made, or none."""
    return json.loads(raw.read_text())["runs"] if raw.exists() else []


def make_missing(chosen: argparse.Namespace) -> None:
    """Make the runs that are missing, and write each when it ends."""
    runs = read(chosen.out)
    made = {(run["game"], run["seed"]) for run in runs}
    missing = [key for seed in chosen.seeds for game in chosen.games if (key := (game, seed)) not in made]
    with tempfile.TemporaryDirectory(prefix="lorarl-games-") as scratch, ThreadPoolExecutor(chosen.at_once) as pool:
        base = Path(scratch) / "base"
        make = [sys.executable, str(ROOT / "examples/smollm2/make_base.py"), "--precision", "bf16", "--out", str(base)]
        subprocess.run(make, check=True)
        asked = [pool.submit(play, Path(scratch), base, game, seed, chosen) for game, seed in missing]
        for future in asked:
            runs.append(future.result())
            chosen.out.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


def play(scratch: Path, base: Path, game: str, seed: int, chosen: argparse.Namespace) -> Run:
    """Train one game with one seed; return its figures.

    Raises:
        CalledProcessError: the run failed. What it printed has been shown.
    """
    out, clock = scratch / f"{game}-{seed}", time.monotonic()
    changes = [f"spec.model.uri=file:{base}", f"spec.checkpoint.uri=file:{out}", f"spec.trainer.seed={seed}"]
    settings = [part for change in [*changes, *chosen.set] for part in ("--set", change)]
    manifest = ROOT / "examples/games" / f"{game}.yaml"
    run = [sys.executable, "-m", "lorarl_trainer.cli", "run", str(manifest), "--out", str(out / "run"), *settings]
    done = subprocess.run(run, env=environment([]), capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
        done.check_returncode()
    steps, measured = figures_of(out / "run" / METRICS)
    line = " ".join(f"{row['score']:.3f}" for row in measured)
    print(f"{game}, seed {seed}: {line}; {time.monotonic() - clock:.0f} s", file=sys.stderr, flush=True)
    about = {"date": f"{datetime.datetime.now(datetime.UTC):%FT%TZ}", "commit": commit(ROOT), "device": device(0)}
    about |= {"command": " ".join(["python", *sys.argv]), "at_once": chosen.at_once}
    return {"game": game, "seed": seed, **about, "steps": steps, "evaluations": measured}


def figures_of(metrics: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return what a run's steps and evaluations say."""
    rows = read_rows(metrics)
    steps = [
        {"seconds": sum(row["seconds"].values()), **{name: row[column] for name, column in OF_STEPS.items()}}
        for row in rows
        if "seconds" in row
    ]
    measured = [row for row in rows if "eval_score" in row]
    return steps, [{"step": row["step"], **{k: row[v] for k, v in MEASURED.items()}} for row in measured]


def markdown(runs: Sequence[Run]) -> str:
    """Return the table: what each game's seeds begin and end with."""
    dates, devices = sorted({run["date"][:10] for run in runs}), sorted({run["device"] for run in runs})
    return "\n".join(
        [
            f"{', '.join(dates)}; {', '.join(devices)}. Raw figures, with the commands: [games.json](../{RAW}).",
            "",
            "| game | seeds | score before | after | games won before | after | invalid moves before | after |",
            "|---|---|---|---|---|---|---|---|",
            *(row_of(game, [run for run in runs if run["game"] == game]) for game in GAMES),
            "",
            f"![Score of held-out games by step]({PICTURE.relative_to('docs')})",
        ]
    )


def row_of(game: str, runs: Sequence[Run]) -> str:
    """Return a game's row: the mean over its seeds, and their range after the last step."""
    cells = []
    for name, form in FORMS.items():
        before, after = zip(*((run["evaluations"][0][name], run["evaluations"][-1][name]) for run in runs), strict=True)
        low, high = form.format(min(after)), form.format(max(after))
        cells += [form.format(statistics.fmean(before)), f"{form.format(statistics.fmean(after))} ({low} to {high})"]
    return f"| {GAMES[game]} | {', '.join(str(run['seed']) for run in runs)} | {' | '.join(cells)} |"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw each game's curves, one line a seed."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "lorarl", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    with mpl.rc_context(style):
        figure = Figure((3.6 * len(GAMES), 2.6), layout="constrained")
        for place, (game, title) in zip(figure.subplots(1, len(GAMES), squeeze=False).flat, GAMES.items(), strict=True):
            for run in (run for run in runs if run["game"] == game):
                steps = [row["step"] for row in run["evaluations"]]
                place.plot(steps, [row["score"] for row in run["evaluations"]], "o-", ms=3, label=f"seed {run['seed']}")
            place.set(title=title, ylim=(0, 1.05), xlabel="step", ylabel="score of held-out games")
            place.title.set_fontsize(9)
            place.grid(color="#e2e8f0")
            place.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
