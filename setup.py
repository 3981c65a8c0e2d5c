"""Puts the folders `config` and `manifests` into the wheel, as kveval/data; all else is in pyproject.toml.

Finds the packages too, because packages that are found cannot be combined with packages of other folders there.
`pcp_parquet`, which is a distribution of its own as well, is in this wheel as a further package: a dependency would have
to be published, or be named by an absolute path, and neither works offline from a clone.
"""

from setuptools import find_packages, setup

PACKAGES = ["kveval", "kveval.*", "pcp_parquet", "pcp_parquet.*"]
FOLDERS = {
    "kveval.data.config": "config",
    "kveval.data.manifests": "manifests",
}

setup(
    packages=[*find_packages("scripts", include=PACKAGES), *FOLDERS],
    package_dir={"": "scripts", **FOLDERS},
)
