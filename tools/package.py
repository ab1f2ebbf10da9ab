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
DATA = ("sotto/py.typed", "sotto/serving/page.html", "sotto/people/pages/style.css")
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


def absent(wheel: Path, sdist: Path) -> list[str]:
    """Returns the data files that a package lacks."""
    with zipfile.ZipFile(wheel) as opened:
        there = set(opened.namelist())
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/src/")[2] for name in archive.getnames()}
    return [name for name in DATA if name not in there or name not in sources]


def tried(python: str, wheel: Path) -> str:
    """Installs the wheel in a bare environment, uses it, and returns the size in words."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        binaries = folder / "venv" / "bin"
        subprocess.run([binaries / "pip", "install", "--quiet", wheel], check=True)
        for words in (["--help"], TRAIN, ["certificate", "run", "--verify"]):
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
    if lacking := absent(wheel, sdist):
        sys.exit(f"the packages lack {', '.join(lacking)}; see package-data in pyproject.toml")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {sdist.name}", flush=True)
    for python in sys.argv[1:] or [name for name in NAMES if shutil.which(name)]:
        print(tried(python, wheel), flush=True)


if __name__ == "__main__":
    main()
