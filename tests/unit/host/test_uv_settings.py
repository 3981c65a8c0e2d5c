"""What pip is configured with, as uv is told: sources, certificates and proxy, or that pip has to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import REPOSITORY

from kveval.host.setup.uv_settings import CannotTellUv, settings_of_pip, uv_environment


def test_a_variable_replaces_the_section_of_install_and_that_the_global_one() -> None:
    listing = """\
:env:.index-url='https://variable.example/simple'
download.find-links='/of/another/command'
global.index-url='https://global.example/simple'
global.cert='/global.pem'
global.timeout='60'
install.cert='/install.pem'
:env:.default-timeout='180'
:env:.find-links=''
"""
    assert settings_of_pip(listing) == {
        "index-url": "https://variable.example/simple",
        "cert": "/install.pem",
        "timeout": "180",
    }


def test_sources_certificates_and_limits_are_told_under_uvs_names() -> None:
    settings = {
        "index-url": "https://user:secret@own.example/simple",
        "extra-index-url": "https://a.example/simple\nhttps://b.example/simple",
        "find-links": "/wheels https://c.example/wheels",
        "trusted-host": "own.example a.example:8080",
        "cert": "/ca.pem",
        "client-cert": "/me.pem",
        "timeout": "180",
        "retries": "2",
        "no-index": "false",
        "progress-bar": "off",
    }
    assert uv_environment(settings, {"HOME": "/home/me"}) == {
        "HOME": "/home/me",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INDEX_URL": "https://user:secret@own.example/simple",
        "UV_EXTRA_INDEX_URL": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/wheels,https://c.example/wheels",
        "UV_INSECURE_HOST": "own.example a.example:8080",
        "SSL_CERT_FILE": "/ca.pem",
        "SSL_CLIENT_CERT": "/me.pem",
        "UV_HTTP_TIMEOUT": "180",
        "UV_HTTP_RETRIES": "2",
    }


def test_sources_that_are_configured_for_uv_alone_do_not_count() -> None:
    environment = {
        "UV_DEFAULT_INDEX": "https://other.example/simple",
        "UV_CONSTRAINT": "constraints.txt",
        "UV_CACHE_DIR": "/cache",
    }
    assert uv_environment({}, environment) == {
        "UV_CACHE_DIR": "/cache",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_proxy_of_pip_is_the_only_one() -> None:
    environment = {"https_proxy": "http://old.example:1", "NO_PROXY": "own.example"}
    told = uv_environment({"proxy": "me:secret@proxy.example:3128"}, environment)
    assert told == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "HTTP_PROXY": "http://me:secret@proxy.example:3128",
        "HTTPS_PROXY": "http://me:secret@proxy.example:3128",
    }


@pytest.mark.parametrize(
    ("settings", "environment", "certificates"),
    [
        ({}, {"REQUESTS_CA_BUNDLE": "/a.pem", "CURL_CA_BUNDLE": "/b.pem"}, "/a.pem"),
        ({}, {"CURL_CA_BUNDLE": "/b.pem", "SSL_CERT_FILE": "/c.pem"}, "/b.pem"),
        ({}, {"SSL_CERT_FILE": "/c.pem"}, "/c.pem"),
        ({"cert": "/own.pem"}, {"REQUESTS_CA_BUNDLE": "/a.pem"}, "/own.pem"),
    ],
)
def test_certificates_are_those_that_pip_would_trust(
    settings: dict[str, str], environment: dict[str, str], certificates: str
) -> None:
    assert uv_environment(settings, environment)["SSL_CERT_FILE"] == certificates


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"no-index": "1"}, {"UV_NO_INDEX": "1"}),
        ({"no-cache-dir": "off"}, {"UV_NO_CACHE": "1"}),
        ({"cache-dir": "/big/pip"}, {"UV_CACHE_DIR": "/big/pip/uv"}),
    ],
)
def test_switches_and_the_cache_are_told(
    settings: dict[str, str], told: dict[str, str]
) -> None:
    assert told.items() <= uv_environment(settings, {}).items()


@pytest.mark.parametrize(
    "settings",
    [
        {"constraint": "constraints.txt"},
        {"keyring-provider": "subprocess"},
        {"no-binary": ":all:"},
        {"find-links": "/a,b"},
        {"cert": "/"},
    ],
)
def test_what_uv_cannot_be_told_is_named(settings: dict[str, str]) -> None:
    (name,) = settings
    with pytest.raises(CannotTellUv, match=name):
        uv_environment(settings, {})


_NAMES = st.sampled_from(["index-url", "extra-index-url", "proxy", "constraint", "log"])


@given(st.dictionaries(_NAMES, st.text(min_size=1)))
def test_pips_listing_is_read_back_whatever_the_values(values: dict[str, str]) -> None:
    listing = "\n".join(f"global.{name}={value!r}" for name, value in values.items())
    assert settings_of_pip(listing) == values


def start_uv(tmp_path: Path, pip_conf: str) -> subprocess.CompletedProcess[str]:
    """Start a program in uv's place that prints the variables which name sources."""
    (tmp_path / "pip.conf").write_text(pip_conf)
    stand_in = tmp_path / "uv"
    stand_in.write_text('#!/bin/sh\necho "$@"; env | grep "^UV_.*INDEX_URL" | sort\n')
    stand_in.chmod(0o755)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("PIP_")
    }
    own = {
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PYTHONPATH": str(REPOSITORY / "scripts"),
    }
    return subprocess.run(
        [sys.executable, "-m", "kveval.host.setup.uv_settings", stand_in, "pip"],
        env=kept | own,
        capture_output=True,
        text=True,
    )


def test_the_indexes_of_a_pip_conf_reach_uv_but_not_its_command_line(
    tmp_path: Path,
) -> None:
    done = start_uv(
        tmp_path,
        "[global]\nindex-url = https://a.example/simple\n"
        "extra-index-url =\n    https://b.example/simple\n    https://c.example/simple\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "pip",
        "UV_EXTRA_INDEX_URL=https://b.example/simple https://c.example/simple",
        "UV_INDEX_URL=https://a.example/simple",
    ]


def test_uv_is_not_started_where_pip_has_to_install(tmp_path: Path) -> None:
    done = start_uv(tmp_path, "[install]\nconstraint = versions.txt\n")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "pip has constraint configured, which uv cannot be told"
    ]
