"""The tutorial's reward: 1 for the right desk alone, and a little for the right desk within a longer text."""


def score(prompt: str, completion: str, answer: str, row: dict[str, str]) -> dict[str, float]:
    said = completion.strip().strip(".").lower()
    right, mentioned = said == answer, answer in said
    return {"score": 1.0 if right else 0.2 * mentioned, "right": right, "mentioned": mentioned}
