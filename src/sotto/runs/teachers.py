"""Opens a trained run as a teacher."""

from pathlib import Path

from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.algorithms.kickstarting.teachers import Ensemble, RowsFunction
from sotto.errors import RunError
from sotto.privacy.certificates.derive import derive, verify
from sotto.rl.envs.registry import from_data
from sotto.rl.networks import Policy
from sotto.runs import states
from sotto.runs.directory import NOTHING_NAMED, Experiment, Named, open_experiment
from sotto.runs.registry import algorithm_named, config_from_json


def rows_to_serve(teacher: TeacherRun) -> RowsFunction:
    """The teacher's own rows, for a service, which adds noise and charges before they leave."""
    return teacher._ensemble


def teacher_policies(
    path: Path, *, protected: bool = True, named: Named = NOTHING_NAMED
) -> TeacherRun:
    """The policies of a finished or interrupted run, as a teacher.

    Args:
        path: of the run.
        protected: whether nothing of it may leave but answers. A run of DPPG is released already.
        named: what its settings may name outside of its directory.

    Raises:
        RunError: no run, no checkpoint, a run of kickstart or without a finite set of actions, or
            a DPPG run whose certificate is not proved.
        PrivacyError: a DPPG run's ledger is damaged or another run's.
    """
    experiment = open_experiment(path, named)
    settings = experiment.settings
    algorithm = algorithm_named(settings.algorithm)
    if not algorithm.teaches:
        raise RunError(f"{path} is a run of {settings.algorithm}; a teacher is one of ppo or dppg")
    config = config_from_json(algorithm, settings.config)
    private = algorithm.has_ledger(config)
    if private:
        _verify(experiment)
    from_data(settings.config.get("env_id", ""), path / "config.json", named.env_id)
    trained = states.load(algorithm, config, experiment, states.last_checkpoint(experiment))
    policy = algorithm.policies(trained)[algorithm.default_policy]
    if not isinstance(policy, Policy):
        raise RunError(
            f"{path} cannot be a teacher: its policy has inputs standardised by released "
            "statistics, for which no distance is certified; train it without them"
        )
    try:
        ensemble = Ensemble(policy)
    except ValueError as error:
        raise RunError(f"{path} cannot be a teacher: {error}") from error
    return TeacherRun(
        path=path,
        env_id=config.env_id,
        private_training=private,
        shards=not private and len(experiment.runs) > 1,
        protected=protected and not private,
        _ensemble=ensemble,
    )


def _verify(experiment: Experiment) -> None:
    """A DPPG run answers freely only while its certificate is proved and true."""
    for run in experiment.runs:
        ledger = run.open_ledger()
        found = verify(run.certificate, ledger)
        if found.status == "false":
            raise RunError(
                f"the teacher's certificate at {run.certificate} is not true: {found.mismatches[0]}"
            )
        status = derive(ledger).status
        if status != "proved":
            raise RunError(
                f"the teacher's certificate at {run.certificate} has status {status!r}, so its "
                "answers are not free; train it so that it is proved"
            )
