"""What a schedule is: its rules, its times in every zone, and the names of its jobs."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.crdgen import schedule_crd
from lorarl_api.faults import ManifestError
from lorarl_api.schedules.cron import MACROS, MOST_MISSED, CronError, Due, Times, times_of
from lorarl_api.schedules.manifest import checked_schedule, job_document, job_name, schedule_faults, time_of
from lorarl_api.validate import validate_files
from unit.contract.manifests import Case, Changes
from unit.contract.schedule_cases import CASES, REFUSED, VALUES, schedule
from unit.contract.test_generate import objects

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_rule_is_refused_with_the_field_and_the_fix(case: Case) -> None:
    (fault,) = schedule_faults(schedule(case.bad))[:1]
    assert case.field in str(fault) and case.hint in str(fault)
    checked_schedule(schedule(case.good))


@pytest.mark.parametrize(("changes", "field"), REFUSED)
def test_a_value_that_no_field_takes_is_refused(changes: Changes, field: str) -> None:
    (fault,) = schedule_faults(schedule(changes))
    assert field in str(fault) and fault.got and fault.expected and fault.hint


@pytest.mark.parametrize(("changes", "message"), VALUES)
def test_times_that_never_come_are_refused(changes: Changes, message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        checked_schedule(schedule(changes))


def test_all_faults_come_at_once() -> None:
    wrong = {"spec.schedule": "0 25 * * *", "spec.timeZone": "Europe/Berln", "spec.continueFrom": "best"}
    found = schedule_faults(schedule({**wrong, "spec.template.spec.reward": None}))
    assert {fault.path for fault in found} == {*wrong, "spec.template.spec.reward"}


def test_each_field_is_described_and_the_template_has_the_rules_of_a_job() -> None:
    schema = schedule_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    template = schema["spec"]["properties"]["template"]["properties"].pop("spec")
    for path, field in [*objects(schema["spec"], "spec"), *objects(schema["status"], "status")]:
        assert field.get("description") or path.endswith("[]"), path
        kind = field.get("type", "any")
        assert kind != "string" or {"enum", "maxLength", "format"} & set(field) or path == "status.conditions[].status"
        assert kind != "array" or "maxItems" in field, path
    assert template["properties"]["adapter"]["properties"]["rank"]["default"] == 32
    rules = [rule["rule"] for _, field in objects(template) for rule in field.get("x-kubernetes-validations", ())]
    assert len(rules) > 50 and not [rule for rule in rules if "oldSelf" in rule]


def test_a_job_that_continues_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dora = {"spec.template.spec.adapter.dora": True, "spec.template.spec.algorithm": {"type": "sft"}}
    path = tmp_path / "schedule.yaml"
    for changes, said in (
        ({**dora, "spec.continueFrom": "last", "spec.template.spec.reward": None}, 'spec.continueFrom: got "last"'),
        ({"spec.template.spec.adapter.ranks": 1}, "spec.template.spec.adapter.ranks: got an unknown key"),
        ({"spec.timezone": "Etc/UTC"}, "Did you mean timeZone?"),
        ({"spec.continueFrom": "lst"}, "expected none, last or best. Did you mean last?"),
        ({"spec.continueFrom": "newest"}, "expected none, last or best. Use a value such as none."),
    ):
        path.write_text(yaml.safe_dump(schedule(changes)))
        assert validate_files([path]) == 1
        assert said in capsys.readouterr().out
    path.write_text(yaml.safe_dump(schedule({"spec.continueFrom": "last"})))
    seen: list[str | None] = []
    assert validate_files([path], lambda job: (seen.append(job.spec.adapter.init_from), (None, None))[1]) == 0
    assert seen == [None]


def test_the_job_of_a_time_has_its_name_and_an_adapter() -> None:
    at = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
    assert job_name("nightly", at) == "nightly-29538900" and time_of("nightly", "nightly-29538900") == at
    for other in ("nightly", "nightly-1", "nightly-manual", "x-29538900", "nightly-٢٩٥٣٨٩٠٠"):
        assert time_of("nightly", other) is None
    template = {"adapter": {"rank": 8}}
    assert job_document(template, "a", "s3://b/c")["spec"] == {"adapter": {"rank": 8, "initFrom": "s3://b/c"}}
    assert job_document(template, "a", None)["spec"] == template == {"adapter": {"rank": 8}}


BERLIN_SPRING, BERLIN_AUTUMN = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "since", "expected"),
    [
        ("30 2 * * *", BERLIN_SPRING, ["03-29 03:00+0200", "03-30 02:30+0200", "03-31 02:30+0200"]),
        ("30 2 * * *", BERLIN_AUTUMN, ["10-25 02:30+0200", "10-26 02:30+0100", "10-27 02:30+0100"]),
        ("30 1-3 * * *", BERLIN_SPRING, ["03-29 01:30+0100", "03-29 03:00+0200", "03-29 03:30+0200"]),
        (
            "30 * * * *",
            datetime(2026, 10, 24, 23, tzinfo=UTC),
            ["10-25 01:30+0200", "10-25 02:30+0200", "10-25 02:30+0100"],
        ),
        ("45 2 * * *", datetime(2026, 10, 25, 1, 30, tzinfo=UTC), ["10-26 02:45+0100", "10-27 02:45+0100"]),
    ],
)
def test_when_the_clocks_change(expression: str, since: datetime, expected: list[str]) -> None:
    times, zone, found = times_of(expression, "Europe/Berlin"), ZoneInfo("Europe/Berlin"), []
    for _ in expected:
        found.append(times.after(since))
        since = found[-1]
    assert [one.astimezone(zone).strftime("%m-%d %H:%M%z") for one in found] == expected


def test_macros_are_their_five_fields_and_a_question_mark_is_a_star() -> None:
    for macro, fields in MACROS.items():
        assert times_of(macro, "Etc/UTC") == times_of(fields, "Etc/UTC")
    assert times_of("0 3 ? * ?", "Etc/UTC") == times_of("0  3 * * *", "Etc/UTC")
    with pytest.raises(CronError, match="4 fields"):
        times_of("0 3 * *", "Etc/UTC")


@pytest.mark.parametrize("field", range(5))
def test_a_message_says_what_a_field_takes(field: int) -> None:
    def at(part: object) -> Times:
        return times_of(" ".join(["1"] * field + [str(part)] + ["*"] * (4 - field)), "Etc/UTC")

    with pytest.raises(CronError) as refused:
        at("x")
    low, high = (int(number) for number in re.findall(r"from (\d+) to (\d+)", refused.value.expected)[0])
    names = re.findall(r"[A-Z]{3}", refused.value.expected)
    for taken in (low, high, f"{low}-{high}", f"{low},{high}", f"{low}/1", *names):
        at(taken)
    for wrong in (low - 1, high + 1, f"{low}-{high + 1}", f"{low}/0", f"{high}-{low}"):
        with pytest.raises(CronError, match=r"^bad ") as again:
            at(wrong)
        assert again.value.expected == refused.value.expected


@pytest.mark.parametrize(
    ("expression", "day"),
    [("0 0 L * *", 31), ("0 0 LW * *", 30), ("0 0 * * 5L", 30), ("0 0 * * 5#2", 9), ("0 0 * * FRI#2", 9)],
)
def test_last_and_numbered_days_are_those_of_the_docs(expression: str, day: int) -> None:
    """January 2026 ends on a Saturday."""
    assert times_of(expression, "Etc/UTC").after(datetime(2026, 1, 1, 1, tzinfo=UTC)) == datetime(
        2026, 1, day, tzinfo=UTC
    )


def _field(low: int, high: int) -> st.SearchStrategy[tuple[str, set[int]]]:
    """A field of an expression, with the values that it stands for."""
    whole = set(range(low, high + 1))
    one = st.integers(low, high).map(lambda n: (str(n), {n}))
    step = st.integers(1, high).map(lambda n: (f"*/{n}", set(range(low, high + 1, n))))
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    part = span.map(lambda pair: (f"{pair[0]}-{pair[1]}", set(range(pair[0], pair[1] + 1))))
    several = st.sets(st.integers(low, high), min_size=1, max_size=4).map(lambda s: (",".join(map(str, s)), s))
    return st.one_of(st.just(("*", whole)), one, step, part, several)


MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1)).map(
    lambda one: one.replace(second=0, microsecond=0, tzinfo=UTC)
)


@settings(max_examples=200)
@given(_field(0, 59), _field(0, 23), _field(0, 6), MOMENTS)
def test_times_in_utc_are_those_that_each_field_has(
    minute: tuple[str, set[int]], hour: tuple[str, set[int]], day: tuple[str, set[int]], since: datetime
) -> None:
    times = times_of(f"{minute[0]} {hour[0]} * * {day[0]}", "Etc/UTC")
    expected = [
        one
        for one in (since + n * MINUTE for n in range(1, 3 * 24 * 60 + 1))
        if one.minute in minute[1] and one.hour in hour[1] and one.isoweekday() % 7 in day[1]
    ]
    due = times.due(since, since + timedelta(days=3))
    if not expected:
        assert due is None
        return
    count = min(len(expected), MOST_MISSED + 1)
    assert due == Due(expected[-1], expected[-2] if len(expected) > 1 else None, count)
    assert times.after(since) == expected[0]


ZONES = st.sampled_from(["Etc/UTC", "Europe/Berlin", "America/New_York", "Africa/Casablanca", "America/St_Johns"])
EXPRESSIONS = st.sampled_from(
    ["0 * * * *", "*/7 1-3 * * *", "30 2 * * *", "0,30 1-3 * * *", "5 */2 * * SUN", "* 2 * * *"]
)
AROUND = st.sampled_from(
    [datetime(2026, m, d, tzinfo=UTC) for m, d in ((2, 14), (3, 8), (3, 22), (3, 28), (10, 24), (11, 1))]
)


@settings(max_examples=400)
@given(ZONES, EXPRESSIONS, AROUND, st.integers(0, 3 * 1440), st.integers(1, 3 * 1440))
def test_the_times_do_not_depend_on_when_one_asks(
    zone: str, expression: str, begin: datetime, first: int, second: int
) -> None:
    """Not even within an hour that a day has twice, so that an operator that starts then sees the same times."""
    times, middle, end = times_of(expression, zone), begin + first * MINUTE, begin + (first + second) * MINUTE
    found = _all(times, begin, end)
    assert found == sorted(set(found))
    assert [one for one in found if one > middle] == _all(times, middle, end)


def _all(times: Times, since: datetime, until: datetime) -> list[datetime]:
    found = []
    while (one := times.after(since)) is not None and one <= until:
        found.append(one)
        since = one
    return found


@given(st.text(st.sampled_from("0123456789*?,/#-LWMOTUEJAN "), max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        times = times_of(text, "Etc/UTC")
    except CronError:
        return
    assert list(itertools.islice(iter([times.after(BERLIN_SPRING)]), 1))
