#!/usr/bin/env bash
# math-verify 0.9.0 reads a number outside of LaTeX otherwise by how it is written, and says nothing where it reads none.
#
# Found: a minus before a plain number is read, a plus makes it no number at all. A power of ten is read after `*`, and
# cut off without a word after `\times`. So a right answer scores 0 in a sentence, and 1 between dollar signs.
#
# Output of the run at which this was written:
#   The answer is -1200.               read as [-1200]             right answer: True
#   The answer is +1200.               read as []                  right answer: False
#   $+1200$                            read as [1200]              right answer: True
#   The answer is 1.2*10^3.            read as [1.2*10**3.0]       right answer: True
#   The answer is 1.2 \times 10^3.     read as [1.20000000000000]  right answer: False
#   $1.2 \times 10^3$                  read as [1.2*10**3]         right answer: True
#
# Exit code 0: math-verify still behaves so. 1: it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check "math-verify[antlr4_13_2]==0.9.0"
"$folder/env/bin/python" - <<'PYTHON'
from math_verify import parse, verify

cases = [
    ("-1200", "The answer is -1200.", True),
    ("1200", "The answer is +1200.", False),
    ("1200", "$+1200$", True),
    ("1200", "The answer is 1.2*10^3.", True),
    ("1200", r"The answer is 1.2 \times 10^3.", False),
    ("1200", r"$1.2 \times 10^3$", True),
]
changed = False
for answer, completion, expected in cases:
    read = parse(completion)
    right = verify(parse(f"${answer}$"), read)
    changed |= right != expected
    print(f"{completion:<35}read as {str(read[:1]):<20}right answer: {right}")
raise SystemExit(changed)
PYTHON
