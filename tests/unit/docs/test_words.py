"""The words that a native speaker would not write, and what to write instead.

Documents, messages, the contract's descriptions, the chart's texts, comments and docstrings must be free of them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

OWN = r"(?:its|their|his|her)"
NO_NOUN = r"(?=[^\w ]|$| (?:takes|gets|has|is|are|in|on|at|to|for|from|with|and|or|that|which|as|by)\b)"
INSTEAD = {
    r"mend(?:s|ed|ing)?": "fix",
    r"anew": "again, or name what is new",
    r"(?:go|goes|went|gone|going) on(?! (?:top|a|an|the)\b)": "resume, continue",
    r"nobody": "no one, or name the subject",
    r"who(?:so)?ever": "anyone who, or name the person",
    rf"of {OWN} own{NO_NOUN}": "its own (before the noun)",
    r"for ever": "forever, or give the limit",
    r"(?:lie|lies|lay) (?:in|at|on|under|below|beside|there|where)": "is in, is stored in",
    r"(?:tell|tells|told) (?:of|what|where|why|how|which|whether|that)": "report, say, show",
    r"(?:is|are|was|were|be|been|as|not) told": "is given, is reported",
    r"hold(?:s|ing)? up|held up": "block, delay",
    r"look(?:s|ed|ing)? after": "manage, watch",
    r"one after the other|one after another": "in turn, one at a time",
    r"thereby|wherefrom|whereto|lest|heretofore": "a new sentence",
    r"have it that|wants it|have their wish": "requires",
}
"""A pattern of whole words, and what to write in its place."""
AVOIDED = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)

PACKAGES = ("crds/lorarl_api", "operator/lorarl_operator", "trainer_image/lorarl_trainer", "trainer_image/lorarl")
CODE = (*PACKAGES, "tests", "tools", "benchmarks", "scripts", "examples")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("helm/*/*.md"), *ROOT.glob("tests/*.md")])
TEXTS = sorted(
    [
        ROOT / "Makefile",
        *ROOT.glob("crds/*.yaml"),
        *ROOT.glob("examples/**/*.yaml"),
        *ROOT.glob("helm/*/values.yaml"),
        *ROOT.glob("helm/*/Chart.yaml"),
        *ROOT.glob("helm/*/templates/**/*.*"),
        *ROOT.glob("helm/*/files/*.json"),
    ]
)
"""Files of which users read every line."""
COMMANDS = (
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("trainer_image/lorarl_trainer/cli/*.py"))),
    "operator/lorarl_operator/main.py",
)
"""Files whose docstrings `--help` prints."""


def avoided(text: str) -> list[str]:
    """Return the avoided words of a text, each with what to write instead."""
    return [f"'{found}': write {instead(found)}" for found in AVOIDED.findall(" ".join(text.split()))]


def instead(found: str) -> str:
    return next(better for pattern, better in INSTEAD.items() if re.fullmatch(pattern, found, re.IGNORECASE))


def prose(markdown: str) -> str:
    """Return a document without code blocks, code spans and the addresses of links."""
    markdown = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", markdown)


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings that are statements: docstrings, also of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that is no docstring; an f-string's values are left out."""
    silent = {id(node) for node in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            silent |= {id(part) for part in node.values}
            parts = [str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values]
            yield node.lineno, "".join(parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def remarks(source: str) -> Iterator[str]:
    """Yield the comments and docstrings of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in docstrings(ast.parse(source)):
        yield str(node.value)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("document", [str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_documents_are_in_plain_words(document: str) -> None:
    assert avoided(prose((ROOT / document).read_text())) == []


@pytest.mark.parametrize("file", [str(path.relative_to(ROOT)) for path in TEXTS])
def test_descriptions_and_help_are_in_plain_words(file: str) -> None:
    assert avoided((ROOT / file).read_text()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_are_in_plain_words(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in sources(package)
        for line, text in messages(ast.parse(path.read_text()))
        for fault in avoided(text)
    ]
    assert found == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_texts_are_in_plain_words(command: str) -> None:
    tree = ast.parse((ROOT / command).read_text())
    assert [fault for node in docstrings(tree) for fault in avoided(str(node.value))] == []


@pytest.mark.parametrize("folder", CODE)
def test_comments_and_docstrings_are_in_plain_words(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in sources(folder)
        if avoided(source := path.read_text())  # Reading comments takes ten times as long.
        for text in remarks(source)
        for fault in avoided(prose(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "Mend it.",
        "it goes on from there",
        "it goes\n    on from there",
        "made anew",
        "the file lies in the folder",
        "a name of its own",
        "whoever runs it",
        "as told at the start",
        "it holds up the others",
    ],
)
def test_what_is_avoided_is_found(text: str) -> None:
    assert avoided(text)


@pytest.mark.parametrize(
    "text",
    [
        "recommend",
        "the flag goes on the command line",
        "it ends of its own accord",
        "the Secrets of its own pods",
        "a cluster of your own",
        "relies in part on it",
        "tells you what to do",
        "forever",
    ],
)
def test_what_is_allowed_is_not_found(text: str) -> None:
    assert avoided(text) == []


def test_a_document_is_read_without_its_code() -> None:
    assert avoided(prose("run\n```\nmend anew\n```\nand `nobody` or [x](lies in)")) == []


def test_a_message_is_read_whole_and_without_docstrings() -> None:
    source = 'def f(x):\n    """It goes on."""\n    raise ValueError(f"the file {x} lies " "in the folder")\n'
    assert [text for _, text in messages(ast.parse(source))] == ["the file 0 lies in the folder"]
