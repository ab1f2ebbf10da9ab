"""Trained runs as teachers."""

from pathlib import Path

from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.errors import RunError
from sotto.privacy.certificates.derive import derive, verify
from sotto.privacy.units import PopulationKind
from sotto.rl.envs.gymnasium.described import is_simulator
from sotto.rl.envs.registry import from_data
from sotto.rl.networks import Policy
from sotto.runs import checkpoints
from sotto.runs.directory import NOTHING_NAMED, Experiment, Named, open_experiment
from sotto.runs.registry import algorithm_named, config_from_json


def rows_to_serve(teacher: TeacherRun) -> Ensemble:
    """Returns the teacher's exact rows, for a service that adds noise and charges the ledger."""
    return teacher._ensemble


def teacher_policies(
    path: Path, *, protected: bool = True, named: Named = NOTHING_NAMED
) -> TeacherRun:
    """Opens the policies of a finished or interrupted run as a teacher.

    Args:
        path: run directory.
        protected: whether only answers may be published. A run of DPPG is released already.
        named: locations outside the directory that the user has confirmed.

    Raises:
        RunError: there is no run or no checkpoint, the run is not of an algorithm that can teach,
            its actions are not discrete, or a DPPG run's certificate is not proved.
        PrivacyError: a DPPG run's ledger is damaged or belongs to another run.
    """
    experiment = open_experiment(path, named)
    settings = experiment.settings
    algorithm = algorithm_named(settings.algorithm)
    if not algorithm.teaches:
        raise RunError(
            f"{path} is a run of {settings.algorithm}, which cannot teach; give one of ppo or dppg"
        )
    config = config_from_json(algorithm, settings.config)
    private = algorithm.has_ledger(config)
    if private:
        _verify(experiment)
    from_data(settings.config.get("env_id", ""), path / "config.json", named.env_id)
    trained = checkpoints.load_all(
        algorithm, config, experiment, checkpoints.last_checkpoint(experiment)
    )
    policy = algorithm.policies(trained)[algorithm.default_policy]
    if not isinstance(policy, Policy):
        raise RunError(
            f"{path} cannot be a teacher: its policy standardises observations by released "
            "statistics, for which no distance is certified; train it without them"
        )
    try:
        ensemble = Ensemble(policy)
    except ValueError as error:
        raise RunError(f"{path} cannot be a teacher: {error}") from error
    population: PopulationKind | None
    if private:
        population = _population(experiment)  # an environment that met people is not made again
    else:
        population = "simulated" if is_simulator(config.env_id) else None
    return TeacherRun(
        path=path,
        env_id=config.env_id,
        private_training=private,
        shards=not private and len(experiment.runs) > 1,
        protected=protected and not private,
        population=population,
        _ensemble=ensemble,
    )


def _population(experiment: Experiment) -> PopulationKind:
    """Returns whether the people of a DPPG run are real, as its certificates say."""
    streams = (one for run in experiment.runs for one in derive(run.open_ledger()).streams)
    return "real" if any(one.statement.population == "real" for one in streams) else "simulated"


def _verify(experiment: Experiment) -> None:
    """Requires that a DPPG run's certificate is proved and true, so that its answers are free."""
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
