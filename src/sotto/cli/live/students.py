"""`sotto students`: the tokens of a served teacher's students and of its operator."""

import sys
from dataclasses import asdict

import tyro

from sotto.cli.terminal.options import Json, Ledger, RunPath
from sotto.cli.terminal.output import print_json, print_table
from sotto.cli.terminal.parsing import command
from sotto.privacy.bounds import at_most, guarantee
from sotto.serving.directory import open_service

Name = tyro.conf.Positional[str]


@command("students issue")
def issue(
    path: RunPath,
    name: Name,
    /,
    queries: int | None = None,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Issues a token for a student. It is shown only now; the service keeps its hash.

    Give the token to the student over a safe channel. The student puts it into the environment
    variable SOTTO_TEACHER_TOKEN. If the name was revoked, it gets a new token and keeps the rest of
    its budget.

    Example:
      sotto students issue runs/service ann --queries 1000

    Args:
        path: Directory of the service.
        name: Name of the student: letters, digits, dots, dashes and underscores. The certificate
            and the page of budgets show it.
        queries: Number of answers that the student may get (default: as many as any student).
    """
    books = open_service(path, ledger).open_ledger()
    token = books.add_student(name, queries)
    if json:
        print_json({"student": name, "token": token, "remaining": books.remaining(name)})
        return
    print(f"{name}'s token, for SOTTO_TEACHER_TOKEN (it is not shown again):", file=sys.stderr)
    print(token)


@command("students list")
def listed(path: RunPath, /, ledger: Ledger = None, json: Json = False) -> None:
    """Prints every student of a service with the answers given and the epsilon.

    Example:
      sotto students list runs/service

    Args:
        path: Directory of the service.
    """
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
    table = []
    for one in spent.students:
        state = "revoked" if one.revoked else "active"
        numbers = (f"{one.answered:,}", f"{one.queries:,}", at_most(one.epsilon))
        table.append((one.name, *numbers, state))
    print_table(("student", "answered", "allowed", "epsilon, alone", "state"), table)
    print(
        f"All students together: {spent.answered:,} of {books.statement.queries:,} answers. All "
        f"{books.statement.queries:,} cost {guarantee(spent.epsilon, spent.delta)}. "
        f"Those given so far cost {at_most(spent.spent_epsilon)} if "
        "their number was fixed in advance."
    )


@command("students revoke")
def revoke(path: RunPath, name: Name, /, ledger: Ledger = None, json: Json = False) -> None:
    """Revokes a student's token at once, also in running services.

    Example:
      sotto students revoke runs/service ann

    Args:
        path: Directory of the service.
        name: Name of the student.
    """
    open_service(path, ledger).open_ledger().revoke(name)
    if json:
        print_json({"student": name, "revoked": True})
    else:
        print(f"{name}'s token is revoked.")


@command("students operator")
def operator(path: RunPath, /, json: Json = False) -> None:
    """Issues the operator's token, with which the page of budgets shows every student.

    It replaces the operator's earlier token and gives access to budgets only. It is shown only now.

    Example:
      sotto students operator runs/service

    Args:
        path: Directory of the service.
    """
    token = open_service(path).operator.renew()
    if json:
        print_json({"token": token})
        return
    print(
        "Token of the operator, for the page of budgets (it is not shown again):", file=sys.stderr
    )
    print(token)
