"""Documents for a cluster from a specification and a site: rendering `manifests/`, rights, what is checked before."""
