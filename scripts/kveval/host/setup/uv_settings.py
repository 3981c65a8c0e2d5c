"""Starts uv so that it takes packages from where pip is configured to take them.

Run it with the interpreter that packages are installed for, because an environment may have a pip.conf of its own; it
needs only the standard library and pip. What pip has configured decides, and nothing that is configured for uv except
where its cache is and how many things it does at once. pip's options: https://pip.pypa.io/en/stable/cli/pip_install/;
uv's variables: https://docs.astral.sh/uv/reference/environment/.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# pip reads them in this order, and a later one replaces the value of an earlier one.
_SECTIONS = ("global", "install", ":env:")
# Variables whose values are lists in pip's configuration, and what separates their items for uv.
_LISTS = {
    "extra-index-url": ("UV_EXTRA_INDEX_URL", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
_FILES = {"cert": "SSL_CERT_FILE", "client-cert": "SSL_CLIENT_CERT"}
_VALUES = {
    "index-url": "UV_INDEX_URL",
    "timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
}
_SAME_OPTION = {"pypi-url": "index-url", "default-timeout": "timeout"}
# They concern what pip prints and asks, or choose nothing among pinned versions that are installed into an environment.
_OF_NO_EFFECT = {
    "break-system-packages",
    "config-file",
    "disable-pip-version-check",
    "log",
    "no-color",
    "no-input",
    "no-python-version-warning",
    "no-warn-script-location",
    "prefer-binary",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "root-user-action",
    "verbose",
}
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_KEPT_OF_UV = (
    "UV_CACHE_DIR",
    "UV_CONCURRENT_BUILDS",
    "UV_CONCURRENT_DOWNLOADS",
    "UV_CONCURRENT_INSTALLS",
    "UV_NO_CACHE",
)


class CannotTellUv(ValueError):
    """pip has something configured that has no equal in uv; the message names the option."""


def settings_of_pip(listing: str) -> dict[str, str]:
    """Return the options that `pip config list` prints, by name, as they hold for `pip install`."""
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in sections:
            option = _SAME_OPTION.get(option, option)
            sections[section][option] = str(ast.literal_eval(value))
    settings: dict[str, str] = {}
    for section in _SECTIONS:
        settings |= {name: value for name, value in sections[section].items() if value}
    return settings


def uv_environment(
    settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment in which uv does what pip's settings say. Raises CannotTellUv."""
    made = {
        name: value
        for name, value in environment.items()
        if not name.startswith("UV_") or name in _KEPT_OF_UV
    }
    # As pip does, uv shall take the pinned version from whichever index has it.
    made["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    authorities = environment.get("REQUESTS_CA_BUNDLE") or environment.get(
        "CURL_CA_BUNDLE"
    )
    if authorities:
        made["SSL_CERT_FILE"] = _file("REQUESTS_CA_BUNDLE", authorities)
    for name, value in settings.items():
        if name in _VALUES:
            made[_VALUES[name]] = value
        elif name in _FILES:
            made[_FILES[name]] = _file(name, value)
        elif name in _LISTS:
            variable, separator = _LISTS[name]
            if separator in value.strip() and separator != " ":
                raise CannotTellUv(f"pip's {name} has a {separator!r} in it")
            made[variable] = separator.join(value.split())
        elif name == "proxy":
            _set_proxy(made, value)
        elif name == "no-index":
            made |= {"UV_NO_INDEX": "1"} if _is_true(value) else {}
        elif name == "no-cache-dir":
            # Whatever its value: https://pip.pypa.io/en/stable/topics/caching/#disabling-caching
            made["UV_NO_CACHE"] = "1"
        elif name == "cache-dir":
            made.setdefault("UV_CACHE_DIR", str(Path(value).expanduser() / "uv"))
        elif name not in _OF_NO_EFFECT:
            raise CannotTellUv(f"pip has {name} configured, which uv cannot be told")
    return made


def _file(name: str, value: str) -> str:
    path = Path(value).expanduser()
    if path.is_dir():
        raise CannotTellUv(f"pip's {name} is a folder, and uv takes a file: {path}")
    return str(path)


def _set_proxy(environment: dict[str, str], proxy: str) -> None:
    """Make a proxy the only one; pip ignores exceptions from one that is configured for it."""
    for name in _PROXIES:
        for spelling in (name, name.lower()):
            environment.pop(spelling, None)
    address = proxy if "://" in proxy else f"http://{proxy}"
    environment |= {"HTTP_PROXY": address, "HTTPS_PROXY": address}


def _is_true(value: str) -> bool:
    return value.lower() in ("y", "yes", "t", "true", "on", "1")


def main(arguments: Sequence[str]) -> int:
    """Run the command of uv in `arguments` and return its status; 1, too, where pip has to install.

    Secrets in URLs reach uv by its environment, because every user of the host can read command lines.
    """
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    )
    if listing.returncode:
        print(f"pip's configuration cannot be read: {listing.stderr.strip()}")
        return 1
    try:
        environment = uv_environment(settings_of_pip(listing.stdout), os.environ)
    except CannotTellUv as reason:
        print(reason)
        return 1
    sys.stdout.flush()
    return subprocess.run(list(arguments), env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
