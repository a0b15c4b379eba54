"""A real Kubernetes on this machine, for tests: provisioned, started, and taken down without a trace.

    provision   the programs: found, or built from pinned sources
    cluster     one running cluster (the module that tests use)
    host        what a cluster changes on the machine, and how that is undone
    api         a small client of the API server, as the administrator
    process     one started program: its log, its signals
    fakenodes   Node objects without a kubelet, by the hundred
    images      the two container images, made without a daemon
    pki         certificates and tokens
    record      proxies that write down or delay what passes

Only the standard library and PyYAML are used here, so that the lab judges the project without running on it.
"""
