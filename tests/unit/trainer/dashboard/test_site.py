"""The dashboard over HTTP: who may ask, what its pages say without JavaScript, and that no run's text is markup."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from lorarl_trainer.dashboard.reports import MOST
from lorarl_trainer.dashboard.serve import Address, open_places
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import Noted, RunFinished, Warned
from lorarl_trainer.progress.web import may_ask
from unit.trainer.dashboard.recorded import Client, record, recorded, served, until
from unit.trainer.progress.runs import grpo_run, grpo_step, run_started, sampled

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
KEY = "a long random text"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    recorded(tmp_path / "out" / "sums", 5, job="sums")
    recorded(tmp_path / "out" / "rank-sweep" / "rank=8", 3, job="sums-8")
    recorded(tmp_path / "out" / "rank-sweep" / "rank=32", 3, job="sums-32", algorithm="dapo")
    return tmp_path / "out"


@pytest.fixture
def client(out: Path, tmp_path: Path) -> Iterator[Client]:
    with served([out], tmp_path / "cache") as found:
        until(lambda: listed(found, 3))
        yield found


def listed(client: Client, count: int) -> bool:
    return f'id="count">{count} run' in client.get().text


def ids(client: Client, query: str = "") -> dict[str, str]:
    """The ids of the runs on a page, by their names."""
    found = re.findall(r'href="run/([0-9a-f]{16})/">([^<]*)</a>', client.get(query).text)
    return {name: run for run, name in found}


def test_the_list_needs_no_scripts(client: Client) -> None:
    text = client.get().text
    assert text.count("<tr>") + text.count('<tr class="group">') == 1 + 2, "a heading, a run and a group"
    assert ">rank-sweep/</a>" in text and "2 runs" in text
    row = text[text.index(">sums</a>") :]
    assert '<span class="state succeeded">succeeded</span>' in row
    assert "5<small" in row and "0.938<small" in row and "held-out score" in row
    assert client.get("?text=rank").text.count('<th scope="row"') == 2, "a folder that holds all of them is no group"
    assert list(ids(client, "?folder=rank-sweep&sort=name")) == ["sums-32", "sums-8"]
    assert list(ids(client, "?folder=rank-sweep&sort=name&turned=1")) == ["sums-8", "sums-32"]
    assert 'aria-sort="descending"><a href="?turned=1">Last moved' in text
    assert "No run fits the filter" in client.get("?text=nothing").text


def test_a_runs_figures_need_no_scripts(client: Client) -> None:
    text = client.get(f"run/{ids(client)['sums']}/").text
    plain = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "held-out score, latest" in plain and "0.938 at step 5" in plain and "5 of 5" in plain
    assert "kind: LoRARLJob" in plain and 'href="../../"' in plain


def test_curves_come_with_the_page_and_samples_follow(client: Client) -> None:
    address = f"run/{ids(client)['sums']}/"
    page = client.get(address).text
    inside = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    assert inside["steps"] == [1, 2, 3, 4, 5] and inside["samples"]["training"] == []
    data = client.get(f"{address}data.json")
    assert len(json.loads(data.text)["samples"]["training"]) == 1
    again = client.get(f"{address}data.json", If_None_Match=data.headers["ETag"])
    assert (again.status, again.text) == (304, "")


def test_an_open_page_gets_what_a_run_writes_and_how_it_ends(client: Client, out: Path) -> None:
    folder = out / "more"
    record(folder, [replace(run_started(folder, 9), job="more"), grpo_step(1, 9)])
    until(lambda: "more" in ids(client))
    address = f"run/{ids(client)['more']}/data.json"
    first = client.get(address)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write((folder / "metrics.jsonl").read_text().replace('"step": 1,', '"step": 2,'))
    second = client.get(address, If_None_Match=first.headers["ETag"])
    assert [json.loads(each.text)["last_step"] for each in (first, second)] == [1, 2]
    failed = {"event": "RunFinished", "state": "failed", "message": "out of memory", "reason": "", "step": 2}
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "Began"}) + "\n" + json.dumps(failed) + "\n")
    until(lambda: json.loads(client.get(address).text)["state"] == "failed")
    assert json.loads(client.get(address).text)["summary"]["message"] == "out of memory"
    assert "out of memory" in client.get("?state=failed").text


def test_chosen_runs_are_compared(client: Client) -> None:
    runs = ids(client, "?folder=rank-sweep&sort=name")
    query = "&".join(f"run={run}" for run in runs.values())
    text = client.get(f"compare?{query}").text
    assert '<th scope="col">rank=32</th><th scope="col">rank=8</th>' in text
    assert "held-out score, best" in text, "the tables are there without scripts"
    data = client.get(f"compare.json?{query}")
    assert [run["name"] for run in json.loads(data.text)["runs"]] == ["rank=32", "rank=8"]
    assert client.get(f"compare.json?{query}", If_None_Match=data.headers["ETag"]).status == 304
    for wrong in ("", f"run={runs['sums-8']}", "&".join(f"run={n:016x}" for n in range(MOST + 1))):
        refused = client.get(f"compare?{wrong}")
        assert refused.status == 400 and f"Choose 2 to {MOST} runs" in refused.text
    gone = client.get(f"compare?{query}&run=0123456789abcdef")
    assert gone.status == 404 and "There is no such run" in gone.text


def test_no_text_of_a_run_is_markup(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = ATTACK.replace("/", "")
    step = sampled(1)
    sample = replace(step, samples=(replace(step.samples[0], completion=ATTACK, prompt=ATTACK),))
    start = replace(run_started(out, 2), job=ATTACK, base_model=ATTACK, algorithm=ATTACK, manifest=f"a: '{ATTACK}'")
    end = RunFinished(state="failed", step=2, adapter_uri=None, total_seconds=1.0, message=ATTACK)
    for name in ("a", "b", f"{folder}/x", f"{folder}/y"):
        record(out / name, [start, sample, Warned(ATTACK), *grpo_run(out, total=2)[1:-1], end])
    record(out / "early", [Noted(ATTACK), end])
    with served([out], tmp_path / "cache") as client:
        until(lambda: listed(client, 5))
        text = client.get().text
        runs = re.findall(r'href="run/([0-9a-f]{16})/"', text)
        assert len(runs) == 3 and 'tr class="group"' in text, "two, one that began, and a folder"
        pages = [f"run/{run}/" for run in runs] + ["", f"?text={quote(ATTACK)}", f"?folder={quote(folder)}"]
        trained = [run for run in runs if "Manifest" in client.get(f"run/{run}/").text]
        assert len(trained) == 2
        for path in [*pages, f"compare?run={'&run='.join(trained)}"]:
            page = client.get(path).text
            scripts = re.findall(r"<script(?: [^>]*)?>", page)
            assert len(scripts) <= 2 and "<img" not in page, path
            assert "script-src 'sha256-" in page or not scripts, "the page's own script is the only one that runs"
            assert "<script>alert" not in page


@pytest.mark.parametrize(
    "path",
    [
        *("../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "run/../../etc/passwd", "run/..%2f..%2fetc/", "//etc/passwd"),
        *("run/0123456789abcdef/metrics.jsonl", "run/0123456789abcde/", "run/0123456789abcdef/../x", "out/sums"),
        *("compare.json/..", "favicon.ico", "run/0123456789abcdef%00/"),
    ],
)
def test_a_path_reaches_no_file(client: Client, path: str) -> None:
    connection = HTTPConnection(client.url.removeprefix("http://").rstrip("/"))
    connection.request("GET", f"/{path}")
    answer = connection.getresponse()
    assert answer.status == 404 and b"root:" not in answer.read()


def test_only_reading_is_answered(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        connection = HTTPConnection(client.url.removeprefix("http://").rstrip("/"))
        connection.request(method, "/", body=b"x")
        assert connection.getresponse().status == 501
    connection.close()
    connection.request("HEAD", "/")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    headers = client.get().headers
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"


def test_a_name_that_was_rebound_to_this_machine_is_refused(client: Client) -> None:
    port = client.url.rstrip("/").rpartition(":")[2]
    assert client.get(Host=f"evil.example:{port}").status == 403
    assert client.get(Host=f"localhost:{port}").status == 200
    assert may_ask({"Host": "[::1]:80"}, None) is None
    assert may_ask({}, None) == 403


def test_a_key_is_asked_for_as_browsers_and_programs_send_it(out: Path, tmp_path: Path) -> None:
    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    with served([out], tmp_path / "cache", key=KEY) as client:
        refused = client.get()
        assert refused.status == 401 and refused.headers["WWW-Authenticate"] == 'Basic realm="lorarl"'
        assert "sums" not in refused.text
        for wrong in (basic("me:wrong"), basic(KEY), "Basic !!!", f"Bearer {KEY}x", "Bearer", KEY, "Digest x"):
            assert client.get(Authorization=wrong).status == 401, wrong
        for right in (basic(f"anyone:{KEY}"), f"Bearer {KEY}"):
            assert client.get(Authorization=right, Host="machine.example").status == 200


def test_other_machines_need_a_key() -> None:
    with pytest.raises(InputError, match=r"--host: got 0\.0\.0\.0 without LORARL_DASHBOARD_KEY"):
        Address("0.0.0.0").require_key()
    Address("0.0.0.0", key=KEY).require_key()
    Address("127.0.0.5").require_key()


def test_a_place_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for name, said in (
        (str(tmp_path / "missing"), "which does not exist"),
        (str(tmp_path / "file"), "which is a file"),
        ("s3://", "expected s3://"),
        ("file://out", "three slashes"),
    ):
        with pytest.raises(InputError, match=said):
            open_places([name], tmp_path)
    monkeypatch.chdir(tmp_path)
    (place,) = open_places(["out"], tmp_path)  # the default one may come later
    place.look()
    assert "`lorarl run` makes the folder `out`" in place.problem


def test_an_empty_folder_and_early_ends_have_their_pages(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with served([out], tmp_path / "cache") as client:
        until(lambda: "No runs here yet" in client.get().text)
        record(out / "begins", [Noted("data: 5 rows")])
        end = RunFinished(state="failed", step=0, adapter_uri=None, total_seconds=1.0, message="no such model")
        record(out / "failed", [Noted("data: 5 rows"), end])
        half = recorded(out / "half") / "run_summary.json"
        half.write_text(half.read_text()[:99])
        until(lambda: listed(client, 3))
        begins, failed, half_run = (client.get(f"run/{ids(client)[name]}/") for name in ("begins", "failed", "half"))
        assert "It has not trained yet" in begins.text and "data: 5 rows" in begins.text
        assert 'http-equiv="refresh"' in begins.text and 'http-equiv="refresh"' not in failed.text
        assert "no such model" in failed.text
        assert "cannot be shown: they are not whole, or of another version" in half_run.text


def test_runs_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    for name in ("mine", "yours"):
        recorded(tmp_path / name / "sums", 5 if name == "mine" else 3, job="sums")
    with served([tmp_path / "mine", tmp_path / "yours"], tmp_path / "cache") as client:
        until(lambda: listed(client, 2))
        text = client.get().text
        found = re.findall(r'href="run/([0-9a-f]{16})/">sums</a><small>([^<]*)</small>', text)
        assert {place for _, place in found} == {f"{tmp_path}/mine/sums", f"{tmp_path}/yours/sums"}
        steps = {json.loads(client.get(f"run/{run}/data.json").text)["last_step"] for run, _ in found}
        assert steps == {3, 5}
        compared = client.get("compare?" + "&".join(f"run={run}" for run, _ in found)).text
        assert '<th scope="col">mine</th>' in compared or '<th scope="col">yours</th>' in compared


def test_ten_megabytes_of_samples_delay_no_curve(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "out" / "long", 5, job="long")
    line = (folder / "samples.jsonl").read_text().splitlines()[0]
    with (folder / "samples.jsonl").open("a") as file:
        for step in range(2, 202):
            file.write(line.replace('"step": 1,', f'"step": {step},').replace("completion 0", "x" * 50_000) + "\n")
    assert (folder / "samples.jsonl").stat().st_size > 10_000_000
    with served([tmp_path / "out"], tmp_path / "cache") as client:
        until(lambda: listed(client, 1))
        address = f"run/{ids(client)['long']}/"
        assert len(client.get(address).text) < 300_000
        data = json.loads(client.get(f"{address}data.json").text)
        assert data["samples"]["left_out"] == ["training"] and data["samples"]["training"][-1]["step"] == 201
