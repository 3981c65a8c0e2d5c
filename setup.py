"""Puts the folders `config` and `manifests` into the wheel, as kveval/data; all else is in pyproject.toml.

Finds the packages too, because packages that are found cannot be combined with packages of other folders there.
"""

from setuptools import find_packages, setup

FOLDERS = {
    "kveval.data.config": "config",
    "kveval.data.manifests": "manifests",
}

setup(
    packages=[*find_packages("scripts", include=["kveval", "kveval.*"]), *FOLDERS],
    package_dir={"": "scripts", **FOLDERS},
)
