"""Builds wheel and sdist into dist/, and tries each in a bare environment of every Python found.

    python tools/package.py [python3.11 python3.12 ...]

Each environment gets the wheel and its dependencies, and no extra. There it trains a tiny private
agent and verifies the certificate. The size of site-packages is printed. Needs network, and the
environment of `make install`.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14")
SOURCE = ROOT / "src"
TRAIN = (
    *("train", "dppg", "--env-id", "CartPole-v1", "--target-epsilon", "1.3", "--delta", "1e-5"),
    *("--users-per-update", "8", "--total-steps", "2048", "--out", "run"),
)


def build(out: Path) -> tuple[Path, Path]:
    """Returns the wheel and the sdist; the wheel is made from the sdist, as an index does."""
    code = f"from setuptools import build_meta as b; print(b.build_sdist({str(out)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = out.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", out, sdist], check=True)
    (wheel,) = out.glob("*.whl")
    return wheel, sdist


def faults(wheel: Path, sdist: Path) -> list[str]:
    """Returns what a package lacks of src/sotto and the licence, and what it has besides."""
    needed = {
        one.relative_to(SOURCE).as_posix()
        for one in (SOURCE / "sotto").rglob("*")
        if one.is_file() and one.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as opened:
        metadata = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"
        there = {name.removeprefix(metadata + "licenses/") for name in opened.namelist()}
    there = {name for name in there if not name.startswith(metadata)}
    with tarfile.open(sdist) as archive:
        members = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    sources = {name.removeprefix("src/") for name in members}
    lacking = sorted((needed | {"LICENSE"}) - (there & sources))
    more = sorted(there - needed - {"LICENSE"}) + sorted(
        name for name in members if name.startswith("tests/")
    )
    return [f"{name} is missing" for name in lacking] + [f"{name} is too much" for name in more]


def tried(python: str, wheel: Path) -> str:
    """Installs the wheel in a bare environment, uses it, and returns the size in words."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        binaries = folder / "venv" / "bin"
        subprocess.run([binaries / "pip", "install", "--quiet", wheel], check=True)
        verified = (["certificate", "run", "--verify"], ["verify", "run/certificate.json"])
        for words in (["--help"], TRAIN, *verified):
            subprocess.run(
                [binaries / "sotto", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
        (packages,) = (folder / "venv" / "lib").glob("*/site-packages")
        size = sum(one.stat().st_size for one in packages.rglob("*") if one.is_file())
        return f"{python}: works; site-packages has {size / 1e6:.0f} MB"


def main() -> None:
    """Builds, checks and tries the packages."""
    out = ROOT / "dist"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    wheel, sdist = build(out)
    if found := faults(wheel, sdist):
        sys.exit(f"{'; '.join(found)}; see package-data in pyproject.toml, and MANIFEST.in")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {sdist.name}", flush=True)
    for python in sys.argv[1:] or [name for name in NAMES if shutil.which(name)]:
        print(tried(python, wheel), flush=True)


if __name__ == "__main__":
    main()
