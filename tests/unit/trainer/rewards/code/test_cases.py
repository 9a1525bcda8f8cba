"""Tests of rows in the forms that data sets have, and the program in a completion."""

import json
from typing import Any

import pytest

from lorarl_trainer.rewards.code.cases import Case, CasesError, cases_of, program_of

PAIRS = [Case(input="1 2\n", output="3"), Case(input="4 5\n", output="9")]


@pytest.mark.parametrize(
    ("column", "cases"),
    [
        (["assert f(1) == 2", "assert f(2) == 3"], [Case("assert f(1) == 2"), Case("assert f(2) == 3")]),
        ("assert f(1) == 2\nassert f(2) == 3", [Case("assert f(1) == 2\nassert f(2) == 3")]),
        ([{"input": "1 2\n", "output": "3"}, {"input": "4 5\n", "output": "9"}], PAIRS),
        ({"inputs": ["1 2\n", "4 5\n"], "outputs": ["3", "9"]}, PAIRS),
        ({"input": ["1 2\n", "4 5\n"], "output": ["3", "9"]}, PAIRS),
        (json.dumps({"inputs": ["1 2\n", "4 5\n"], "outputs": ["3", "9"]}), PAIRS),
        ([{"output": "3"}], [Case(output="3")]),
    ],
    ids=["MBPP", "HumanEval", "CodeContests", "APPS", "input and output", "JSON", "no input"],
)
def test_tests_of_data_sets_are_read(column: Any, cases: list[Case]) -> None:
    assert cases_of(column) == cases


@pytest.mark.parametrize(
    ("column", "got"),
    [
        (None, "NoneType None"),
        ([], "no test"),
        ("[]", "no test"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [[1]], "outputs": [2], "fn_name": "add"}, "tests of the function add, by its arguments"),
        ({"cases": []}, "an object with cases"),
        ([{"input": "1"}], "a test {'input': '1'}"),
        ([" "], "a test ' '"),
    ],
)
def test_what_is_no_test_is_described(column: Any, got: str) -> None:
    with pytest.raises(CasesError) as refused:
        cases_of(column)
    assert str(refused.value) == got


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("def f(): pass", "def f(): pass"),
        ("First:\n```python\na = 1\n```\nBetter:\n```python\na = 2\n```\nDone.", "a = 2\n"),
        ("```\na = 1\n```", "a = 1\n"),
        ("```Python3 title\na = 1\n```", "a = 1\n"),
        ("```python\na = 1\n```\nRun it:\n```bash\npython a.py\n```", "a = 1\n"),
        ("```bash\nls\n```", ""),
        ("```python\nprint('cut", "print('cut"),
        ("```python\ntext = '''```'''\n```", "text = '''```'''\n"),
    ],
)
def test_the_last_python_block_is_the_program(completion: str, program: str) -> None:
    assert program_of(completion) == program
