"""The lowest versions that pyproject.toml declares, as constraints for pip: ``python tests/oldest.py > oldest.txt``."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?(>=|==)([\d.]+)")


def oldest() -> dict[str, str]:
    """Package → its lowest version, of the package itself and of all its extras."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]
    bounds = {}
    for requirement in declared:
        if not requirement.startswith(project["name"]):
            match = REQUIREMENT.match(requirement)
            assert match, f"{requirement} has no lower bound"
            bounds[match[1]] = match[3]
    return bounds


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in oldest().items()))
