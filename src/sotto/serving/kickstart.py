"""Kickstarting with teachers from run directories and from services."""

from pathlib import Path

from sotto.algorithms.kickstarting import algorithm
from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.algorithms.kickstarting.teachers import Teacher
from sotto.runs.directory import Named
from sotto.runs.teachers import teacher_policies


class Kickstart(algorithm.Kickstart):
    """The algorithm of `sotto.algorithms.kickstarting`, with access to teachers."""

    __doc__ = algorithm.Kickstart.__doc__  # the help of its command

    def open_teacher(self, path: Path, protected: bool) -> TeacherRun:
        """The policies of a finished or interrupted run."""
        named = Named(ledger=self.teacher_ledger)
        return teacher_policies(path, protected=protected, named=named)

    def connect(self, url: str) -> Teacher:
        """The teacher at a URL, for whoever has its token."""
        from sotto.serving.client import RemoteTeacher, token_from  # needs the extra `serving`

        return RemoteTeacher(url, token_from(None))
