"""The commands `sotto generate` and `sotto chat`: completions of a tuned language model."""

import sys
from io import TextIOWrapper
from typing import Literal

from sotto.cli.terminal.options import Json, RunPath
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.errors import visible

Policy = Literal["last", "average"]


@command("generate")
def generate(
    path: RunPath,
    /,
    prompt: str,
    samples: int = 1,
    new_tokens: int = 32,
    base: bool = False,
    policy: Policy = "last",
    temperature: float = 1.0,
    seed: int | None = None,
    model: str | None = None,
    json: Json = False,
) -> None:
    """Prints completions of a prompt by the language model of a run of rlhf.

    The tuned model is a function of releases, so its texts cost no privacy. In a run with
    --reranked, the released reward model chooses each of them among several completions.

    Examples:
      sotto generate runs/rlhf --prompt "The film is" --samples 3
      sotto generate runs/rlhf --prompt "The film is" --base --json

    Args:
        path: Run directory.
        prompt: Text to continue.
        samples: Number of completions.
        new_tokens: Largest number of tokens of a completion.
        base: Print as many completions of the base model, too.
        policy: The last released change of the model, or the average of the last ones.
        temperature: Divisor of the logits. A smaller one chooses likely tokens more often.
        seed: Seed of the completions (default: other completions each time).
        model: Language model of the run. It is needed if it is not smollm2, because a file that
            only config.json names is not read.
    """
    from sotto.runs.agents.agent import load_language

    agent = load_language(path, policy=policy, seed=seed, model=model)
    said = {
        name: agent.generate(
            prompt, samples=samples, new_tokens=new_tokens, temperature=temperature, base=of_base
        )
        for name, of_base in (("tuned", False), ("base", True))[: 2 if base else 1]
    }
    if json:
        print_json({"policy": policy, "updates": agent.updates, "prompt": prompt, **said})
        return
    for name, completions in said.items():
        after = f", {policy} policy, after {agent.updates} updates" if name == "tuned" else ""
        print(f"{name} model{after}:")
        for completion in completions:
            print(f"  {visible(prompt)}{_lines(completion)}")


@command("chat")
def chat(
    path: RunPath,
    /,
    new_tokens: int = 32,
    policy: Policy = "last",
    temperature: float = 1.0,
    seed: int | None = None,
    model: str | None = None,
) -> None:
    """Continues each line of the input with the language model of a run of rlhf.

    The model sees one line only, and not the lines before it. End with Ctrl-D.

    Examples:
      sotto chat runs/rlhf
      echo "The film is" | sotto chat runs/rlhf

    Args:
        path: Run directory.
        new_tokens: Largest number of tokens of a completion.
        policy: The last released change of the model, or the average of the last ones.
        temperature: Divisor of the logits. A smaller one chooses likely tokens more often.
        seed: Seed of the completions (default: other completions each time).
        model: Language model of the run. It is needed if it is not smollm2, because a file that
            only config.json names is not read.
    """
    from sotto.runs.agents.agent import load_language

    agent = load_language(path, policy=policy, seed=seed, model=model)
    if sys.stdin.isatty():
        print("Each line is continued. End with Ctrl-D.")
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # refuses a line, and not all that follow
    for line in sys.stdin:
        try:
            (said,) = agent.generate(
                line.rstrip("\n"), new_tokens=new_tokens, temperature=temperature
            )
        except ValueError as error:  # a line that cannot be continued does not end the loop
            print(f"sotto: {visible(str(error))}", file=sys.stderr, flush=True)
        else:
            print(_lines(said), flush=True)


def _lines(text: str) -> str:
    """Returns a model's text with its line breaks, and other characters that do not print shown."""
    return "\n".join(visible(line) for line in text.split("\n"))
