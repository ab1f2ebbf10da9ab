"""Reads experts and their log from files."""

from pathlib import Path

from sotto.algorithms.expert_offline.states import Sources
from sotto.algorithms.experts import population
from sotto.data import minari_files
from sotto.data.datasets import ID_COLUMN
from sotto.privacy.claims.logs import NOT_IMPORTED, ONE_PERSON, about_log


def read_sources(
    experts_path: str | None,
    dataset: str | None,
    id_column: str = ID_COLUMN,
    count: int | None = None,
) -> Sources:
    """Reads experts and their log from files.

    Args:
        experts_path: folder of `sotto experts train`, or the file in it; None reads no experts.
        dataset: folder or name of a Minari dataset; None reads no log.
        id_column: key of the episodes' metadata that holds the number of the expert.
        count: number of experts, which is public; None takes it from the experts or the dataset.

    Raises:
        RunError, ValueError: the files cannot be read, or belong to different experts.
    """
    env_id, actions, policies, log, about = None, None, None, None, NOT_IMPORTED
    if experts_path is not None:
        found = population.load(_folder(experts_path))
        env_id, policies = found.settings.env_id, found.policies
        count = found.settings.experts  # so that an id in the log is an expert's row
    if dataset is not None:
        log = minari_files.load(dataset, id_column, count)
        said = minari_files.described(dataset)
        env_id, actions = env_id or said.env_id, said.actions
        if said.declaration is not None:
            about = about_log(said.declaration, ONE_PERSON)
    return Sources(policies, log, env_id, actions, about)


def _folder(experts_path: str) -> Path:
    path = Path(experts_path)
    return path.parent if path.is_file() else path
