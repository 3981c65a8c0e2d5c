"""Documents for a cluster from a specification and a site: rendering of `manifests/`, permissions, requests of pods."""
