"""`lorarl compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "compare",
    cls=Command,
    examples=["lorarl compare sums sums-rank32", "lorarl compare out/sums-* --page sums.html"],
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option(
    "--page",
    "page_path",
    type=options.FILE,
    help="Page to write.  [default: compare.html beside the first run's folder]",
)
def command(runs: tuple[str, ...], page_path: Path | None) -> None:
    """Compare runs: a table here, and a page with overlaid curves.

    Each RUN is a run's folder, or a job's name under out/. The table has the results, and the settings that differ.
    """
    from lorarl_trainer.errors import InputError
    from lorarl_trainer.progress.runs import find_run

    if len(runs) < 2:
        raise InputError("RUN", f"only {runs[0]}", "two runs or more", "`lorarl list` shows the runs here.")
    folders = [find_run(run) for run in runs]
    print_comparison(folders, page_path or folders[0].absolute().parent / "compare.html")


def print_comparison(folders: Sequence[Path], page_path: Path, best: Sequence[str] = ()) -> None:
    """Print the comparison of the runs in these folders, and write its page.

    `best`: what to say of each as one of the best; empty to say nothing.

    Raises:
        InputError: the page cannot be written.
    """
    from lorarl_trainer.errors import InputError
    from lorarl_trainer.progress.compare import compare_page, compare_runs
    from lorarl_trainer.progress.tables import table

    comparison = compare_runs(folders)
    if any(best):
        comparison["results"] = [("best", list(best)), *comparison["results"]]
    heading = ("", *(run["name"] for run in comparison["runs"]))
    settings = [(name, *values) for name, values in comparison["settings"]]
    results = [(name, *values) for name, values in comparison["results"]]
    print(table([heading, *results, ("",) * len(heading), *settings]))
    try:
        page_path.write_text(compare_page(comparison), encoding="utf-8")
    except OSError as error:
        got = f"{page_path}, which cannot be written ({error.strerror})"
        raise InputError("--page", got, "a path for an HTML file", "Choose another one.") from error
    print(f"\nPage  {page_path}")
