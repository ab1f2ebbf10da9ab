"""Kickstarting with teachers that are run directories or services."""

from pathlib import Path

from sotto.algorithms.kickstarting import algorithm
from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.algorithms.kickstarting.teachers import Teacher
from sotto.runs.agents.teachers import teacher_policies
from sotto.runs.directory import Named


class Kickstart(algorithm.Kickstart):
    """The algorithm of `sotto.algorithms.kickstarting`, with access to teachers."""

    __doc__ = algorithm.Kickstart.__doc__  # the help of its command

    def open_teacher(self, path: Path, protected: bool, env_id: str) -> TeacherRun:
        """Returns the policies of a finished or interrupted run."""
        named = Named(ledger=self.teacher_ledger, env_id=env_id)
        return teacher_policies(path, protected=protected, named=named)

    def connect(self, url: str) -> Teacher:
        """Returns the teacher at a URL, with the token from the environment."""
        from sotto.serving.client import RemoteTeacher, token_from  # needs the extra `serving`

        return RemoteTeacher(url, token_from(None))
