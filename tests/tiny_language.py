"""Trainings of a tiny language model, with simulated and with real people."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

from sotto.data import films
from sotto.data.packages import RESOURCES

MODEL = Path(__file__).parent / "rl" / "language" / "fixtures" / "llama"
PEOPLE = 24
TINY = (
    *("--model", str(MODEL), "--people", str(PEOPLE), "--completions", "3", "--rank", "2"),
    *("--prompt-tokens", "6", "--new-tokens", "6", "--features", "4", "--targets", "q_proj"),
    *("--improvement-prompts", "16", "--candidates", "3", "--delta", "1e-3"),
    *("--evaluation-prompts", "16"),
)
SECRET = "zebra"
"""Word in the texts of real people."""

_WORDS = ["the", "film", "is", "good", "bad", "a", "story", "of", "great", "boring"]

_KILLED = """
import os, signal, sys
from sotto.cli import main
from sotto.runs import checkpoints
left, save = [int(sys.argv.pop(1))], checkpoints.save
def killed(*given):
    left[0] -= 1
    os.kill(os.getpid(), signal.SIGKILL) if left[0] < 0 else save(*given)
checkpoints.save = killed
main(sys.argv[1:])
"""


def install_films(folder: Path) -> None:
    """Writes texts of simulated people as `sotto install films` does; `folder` is SOTTO_DATA."""
    rng = random.Random(0)
    path = folder / "films" / RESOURCES["films"].path.name
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as opened:
        for kind, name in films.FILES.items():
            count = films.RATERS + films.HELD_OUT + 3 * PEOPLE if kind == "films" else 4
            lines = []
            for number in range(count):
                text = " ".join(rng.choices(_WORDS, k=8))
                rating = 1 if text.count("good") > text.count("bad") else -1
                lines.append(f"{number}\t{rating}\t{text}")
            content = "\n".join(lines).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))


def write_feedback(folder: Path) -> tuple[str, ...]:
    """Writes ratings of real people and public prompts, and returns the flags that name them."""
    rng = random.Random(0)
    ratings = [
        {
            "person": f"person {person}",
            "prompt": f"{SECRET} {rng.choice(_WORDS)}",
            "completion": f" {rng.choice(_WORDS)} {SECRET}",
            "rating": rng.random(),
        }
        for person in range(PEOPLE)
        for _ in range(3)
    ]
    feedback, prompts = folder / "ratings.jsonl", folder / "prompts.txt"
    feedback.write_text("".join(json.dumps(one) + "\n" for one in ratings))
    prompts.write_text("\n".join(" ".join(rng.choices(_WORDS, k=3)) for _ in range(20)))
    return "--feedback", str(feedback), "--public-prompts", str(prompts)


def killed_at_checkpoint(number: int, *given: str) -> None:
    """Runs a command in a process that is killed (-9) where it would write a checkpoint."""
    process = subprocess.run(
        [sys.executable, "-c", _KILLED, str(number), *given],
        env=dict(os.environ),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
