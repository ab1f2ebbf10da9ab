"""The end of a process, played by an exception."""


class Killed(BaseException):
    """An exception that no code under test catches. Files are left as after kill -9."""
