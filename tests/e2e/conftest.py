"""One cluster for all e2e tests, since a start takes seconds; who needs another kind of cluster says so."""

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from .lab.cluster import Cluster
from .lab.provision import ProvisionError, ensure
from .services import Services

_numbers = count(1)


class Machine:
    """The machine under the tests: one cluster at a time, kept while the next test wants the same kind."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.exit("the stories on a real cluster need root", returncode=1)
        try:
            self.programs = ensure()
        except ProvisionError as error:
            pytest.exit(str(error), returncode=1)
        self._cluster: Cluster | None = None
        self._options: dict[str, Any] = {}
        self._services: Services | None = None

    def cluster(self, **options: Any) -> Cluster:
        """A cluster made with these options of Cluster: the running one, or a new one in its place."""
        if self._cluster is None or options != self._options:
            self.free()
            cluster = Cluster(self.programs, **options)
            cluster.__enter__()
            self._cluster, self._options = cluster, options
        return self._cluster

    def services(self) -> Services:
        """Our services on the usual cluster, started where they do not run."""
        cluster = self.cluster()
        if self._services is None or self._services.cluster is not cluster:
            self._services = Services(cluster)
            self._services.start()
        else:
            self._services.mend()
        return self._services

    def rest(self) -> None:
        """Ends our services, for a test that starts them with settings of its own."""
        if self._services is not None:
            self._services.stop()
            self._services = None

    def free(self) -> None:
        """Takes the cluster down; nothing of it may stay."""
        self.rest()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()
            assert cluster.traces() == []


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    machine = Machine()
    try:
        yield machine
    finally:
        machine.free()


@pytest.fixture
def cluster(machine: Machine) -> Cluster:
    return machine.cluster()


@pytest.fixture
def services(machine: Machine) -> Services:
    """Our scheduler service and agent at work; a test that ends one of them starts it again itself."""
    return machine.services()


@pytest.fixture
def ns(services: Services, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name space of the test's own on the cluster of our services."""
    short = request.node.originalname.removeprefix("test_").replace("_", "-")[:36].strip("-")
    with services.cluster.namespace(f"{short}-{next(_numbers)}") as name:
        yield name


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name space of the test's own; its pods are gone before the next test begins."""
    name = f"t-{request.node.originalname.removeprefix('test_').replace('_', '-')[:50].strip('-')}"
    with cluster.namespace(name):
        yield name
