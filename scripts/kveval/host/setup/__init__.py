"""Questions of scripts/setup.sh and bundle.sh before there is an environment: the standard library and packaging."""
