#!/usr/bin/env bash
# reasoning-gym 0.1.25: get_score_answer_fn(task) scores by the task's default settings, not by those of the row.
#
# A row says in its metadata how many decimal places it asks for. The scorer of its own data set rounds to them; the one
# that the library offers for rows from elsewhere, as from a file, demands the default's six. So the same answer to the
# same row gets 1 from one and 0 from the other.
#
# Output of the run at which this was written:
#   the row asks for (2, 2) decimal places; its answer is -2.833190, and what was said is -2.8232
#   score by the row's own data set: 1.0
#   score by get_score_answer_fn:    0.0
#
# Exit code 0: reasoning-gym still behaves so. 1: it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check reasoning-gym==0.1.25
"$folder/env/bin/python" -W ignore - <<'PYTHON'
import reasoning_gym

rows = reasoning_gym.create_dataset(
    "decimal_arithmetic", size=1, seed=0, min_num_decimal_places=2, max_num_decimal_places=2
)
row = rows[0]
said = f"{float(row['answer']) + 0.01:.4f}"
own = rows.score_answer(said, row)
offered = reasoning_gym.get_score_answer_fn("decimal_arithmetic")(said, row)
places = row["metadata"]["difficulty"]["decimal_places"]
print(f"the row asks for {places} decimal places; its answer is {row['answer']}, and what was said is {said}")
print(f"score by the row's own data set: {own}")
print(f"score by get_score_answer_fn:    {offered}")
raise SystemExit(not (own == 1.0 and offered == 0.0))
PYTHON
