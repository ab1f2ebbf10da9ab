"""What holds for the repository as a whole."""

import ast
import importlib
import importlib.resources
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "src").rglob("*.py"))
MAX_LINES = 400
MAX_MODULES = 15
"""In one folder, the package's own file not counted."""

# Where one person's machine shows: home and scratch directories, private hosts, package indexes.
MACHINE = re.compile(
    r"(?<![\w.])/(?:home|Users|root|work|opt|tmp|mnt)/[\w.]"
    r"|[A-Z]:\\Users"
    r"|--(?:extra-)?index-url|--find-links|--trusted-host"
    r"|https?://[^\s/\"']*(?:@|pypi|\.internal|\.local\b|:\d{4})"
    r"|file://"
)


def tracked() -> list[Path]:
    """The repository's own files; outside a git checkout there is nothing to say."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def machine_traces(text: str) -> list[str]:
    return [match.group() for match in MACHINE.finditer(text)]


def test_no_file_names_a_machine():
    found = {}
    for path in tracked():
        if path == Path(__file__) or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:  # a picture
            continue
        if traces := machine_traces(text):
            found[str(path.relative_to(ROOT))] = traces
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "cd /home/ann/sotto",
        "see /work/notes.md",
        "'/tmp/run1/x'",
        "--index-url https://example.org/simple",
        "https://pypi.example.org/simple",
        "http://user:secret@mirror.example.org/",
        "http://mirror.example.org:8080/simple",
        "file:///srv/wheels",
    ],
)
def test_a_trace_of_a_machine_is_found(text):
    assert machine_traces(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "runs/demo/report.html",
        "https://arxiv.org/abs/2602.17454",
        "a/work/b",
        "sqlite:///ledger.db",
    ],
)
def test_other_text_is_left_alone(text):
    assert machine_traces(text) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_every_module_is_short_and_says_what_it_is(path):
    source = path.read_text()
    assert ast.get_docstring(ast.parse(source)), "the module has no docstring"
    assert len(source.splitlines()) <= MAX_LINES


def test_no_folder_has_too_many_modules():
    folders = [path.parent for path in MODULES if path.name != "__init__.py"]
    crowded = {str(one.relative_to(ROOT)) for one in folders if folders.count(one) > MAX_MODULES}
    assert crowded == set()


def test_type_marker_is_installed_with_the_package():
    assert importlib.resources.files("sotto").joinpath("py.typed").is_file()


@pytest.mark.parametrize("lock", ["dev.lock", "benchmarks.lock"])
def test_locks_pin_every_package_with_hashes(lock):
    """pip would refuse an unhashed line, too, but only on the machine of whoever installs."""
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements" / lock).read_text())
    packages = [entry for entry in entries if not entry.startswith("#")]
    assert len(packages) > 50
    assert [p for p in packages if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:", p, re.S)] == []


def test_lock_satisfies_the_project():
    """Every direct dependency is in the lock, at a version that pyproject.toml allows."""
    tomllib = pytest.importorskip("tomllib")
    packaging = pytest.importorskip("packaging.requirements")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "requirements" / "dev.lock").read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["dev"]]:
        requirement = packaging.Requirement(line)
        if requirement.name == "sotto":  # the extras that the tests need
            assert requirement.extras <= set(extras)
            continue
        version = pinned[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), f"{line}: the lock has {version}"


def test_every_place_names_the_same_version():
    version = importlib.import_module("sotto").__version__
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
