"""`sotto students`: who may ask a served teacher, and who runs it."""

import sys
from dataclasses import asdict
from pathlib import Path

import tyro

from sotto.cli.parsing import parse, print_json
from sotto.serving.directory import open_service

ServicePath = tyro.conf.Positional[Path]
Name = tyro.conf.Positional[str]


def issue(args: list[str]) -> int:
    """Runs `sotto students issue`."""

    def run(
        path: ServicePath,
        name: Name,
        /,
        queries: int | None = None,
        ledger: str | None = None,
        json: bool = False,
    ) -> None:
        """Issues a student's token. It is shown this once; only its hash is kept.

        Give it to the student over a safe channel; they put it into SOTTO_TEACHER_TOKEN. A name
        that was revoked may be issued again, and goes on with what is left.

        Example:
          sotto students issue runs/service ann --queries 1000

        Args:
            path: the service's directory.
            name: of the student: letters, digits, dots, dashes and underscores. It is in the
                certificate and on the page of budgets.
            queries: answers that the student may get. None: as many as any student.
            ledger: where the ledger is, if not in the directory: one that only service.json names
                is not opened.
            json: print one JSON object.
        """
        books = open_service(path, ledger).open_ledger()
        token = books.add_student(name, queries)
        if json:
            print_json({"student": name, "token": token, "remaining": books.remaining(name)})
            return
        print(f"{name}'s token, for SOTTO_TEACHER_TOKEN; it is not shown again:", file=sys.stderr)
        print(token)

    parse(run, args, "students issue")
    return 0


def listed(args: list[str]) -> int:
    """Runs `sotto students list`."""

    def run(path: ServicePath, /, ledger: str | None = None, json: bool = False) -> None:
        """Who may ask a service's teacher, and what they have been answered.

        Example:
          sotto students list runs/service

        Args:
            path: the service's directory.
            ledger: where the ledger is, if not in the directory: one that only service.json names
                is not opened.
            json: print one JSON object.
        """
        from rich.console import Console
        from rich.table import Table

        books = open_service(path, ledger).open_ledger()
        spent = books.spent()
        if json:
            everybody = [asdict(one) for one in spent.students]
            total: dict[str, float] = {
                "queries": books.statement.queries,
                "answered": spent.answered,
            }
            total |= {"epsilon": spent.epsilon, "spent_epsilon": spent.spent_epsilon}
            print_json({"students": everybody, "total": total})
            return
        table = Table("student", "answered", "allowed", "epsilon, alone", "state")
        for one in spent.students:
            state = "revoked" if one.revoked else "active"
            numbers = (f"{one.answered:,}", f"{one.queries:,}", f"{one.epsilon:.4g}")
            table.add_row(one.name, *numbers, state)
        Console().print(table)
        print(
            f"All together: {spent.answered:,} of {books.statement.queries:,} answers. All of them "
            f"cost epsilon {spent.epsilon:.4g} at delta {spent.delta:.3g}; those given so far cost "
            f"{spent.spent_epsilon:.4g}, if their number was fixed in advance."
        )

    parse(run, args, "students list")
    return 0


def revoke(args: list[str]) -> int:
    """Runs `sotto students revoke`."""

    def run(
        path: ServicePath, name: Name, /, ledger: str | None = None, json: bool = False
    ) -> None:
        """Revokes a student's token, at once, also in services that are running.

        Example:
          sotto students revoke runs/service ann

        Args:
            path: the service's directory.
            name: of the student.
            ledger: where the ledger is, if not in the directory: one that only service.json names
                is not opened.
            json: print one JSON object.
        """
        open_service(path, ledger).open_ledger().revoke(name)
        if json:
            print_json({"student": name, "revoked": True})
        else:
            print(f"{name}'s token opens nothing any longer.")

    parse(run, args, "students revoke")
    return 0


def operator(args: list[str]) -> int:
    """Runs `sotto students operator`."""

    def run(path: ServicePath, /, json: bool = False) -> None:
        """Issues your own token, with which the page of budgets shows every student.

        It replaces the one issued before, and opens nothing but budgets. It is shown this once.

        Example:
          sotto students operator runs/service

        Args:
            path: the service's directory.
            json: print one JSON object.
        """
        token = open_service(path).new_operator_token()
        if json:
            print_json({"token": token})
            return
        print("Your token, for the page of budgets; it is not shown again:", file=sys.stderr)
        print(token)

    parse(run, args, "students operator")
    return 0
