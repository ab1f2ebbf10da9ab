"""`sotto train kickstart`: a student that listens to a private teacher."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.teachers import Teacher
from sotto.cli.parsing import flag, parse, unvalidated
from sotto.cli.train import LedgerOptions, stored_config, train_algorithm
from sotto.runs.directory import RunError
from sotto.runs.kickstart import kickstart as kickstart_runs

if TYPE_CHECKING:
    from sotto.algorithms.kickstarting.config import KickstartConfig as KickstartFlags
else:
    KickstartFlags = unvalidated(KickstartConfig)


@dataclass(frozen=True)
class KickstartOptions(LedgerOptions):
    """Where a student's training goes."""

    teacher_ledger: str | None = None
    """Ledger of a teacher that is a run of dppg, where it is not in that run's directory."""


def kickstart(args: list[str]) -> int:
    """Runs `sotto train kickstart`."""
    stored = stored_config("kickstart", args)
    default = KickstartFlags(**vars(stored)) if stored else KickstartFlags()

    def run(where: KickstartOptions, settings: KickstartFlags = default) -> int:
        """Trains a student that asks a private teacher (Gohari et al. 2021): PPO, with a pull
        towards the teacher's noisy answers that ends where the noise begins.

        The teacher is a trained run, or a service at a URL. Every answer is charged before it is
        given; --target-epsilon calibrates the noise to what all answers together may cost.
        Seeds ask the same teacher, each under a ledger of its own, so that their costs add up;
        CartPole-v1 takes about a minute on two cores, 30 seeds a few minutes.

        Examples:
          sotto train ppo --seeds 200 --out runs/shards
          sotto train kickstart --teacher runs/shards --teacher-mechanism gaussian-policy \
            --target-epsilon 8 --out runs/student
          sotto train kickstart --teacher runs/ppo --schedule vanishing --out runs/paper
          sotto train kickstart --teacher runs/ppo --teacher-mechanism exact --out runs/plain
          SOTTO_TEACHER_TOKEN=... sotto train kickstart --teacher https://HOST --out runs/x
        """
        config = KickstartConfig(**vars(settings))
        if where.resume and config.remote and flag(args, "--teacher") != config.teacher:
            raise RunError(
                f"config.json names the teacher at {config.teacher}, to which your token would be "
                f"sent; give --teacher {config.teacher} again if you trust that"
            )
        algorithm = kickstart_runs(_connect, where.teacher_ledger)
        return train_algorithm("kickstart", where, config, args, algorithm)

    return parse(run, args, "train kickstart")


def _connect(url: str) -> Teacher:
    """The teacher at a URL, for whoever has its token."""
    from sotto.serving.client import RemoteTeacher, token_from

    return RemoteTeacher(url, token_from(None))
