"""Whose ids are these: one pure function over what kubelet's own records answered.

kubelet tells a device plugin ids, never a pod. The pod stands in two of its records:

    checkpoint      exact. Beside ids, pod UID and container stands our own answer to Allocate, and in it the
                    nonce that we drew for exactly that call.
    pod-resources   the documented way, and a poorer one: no UID, no nonce, no plain init containers.

Rule 1. The checkpoint decides. Pod-resources is asked where there is no checkpoint, or to contradict it.
Rule 2. Several entries may hold the same ids, since kubelet lets an app container have those of an init
        container of its pod. Each has a nonce of its own, so all are owners; finished pods are none.
Rule 3. Whatever is not certain belongs to nobody: the answer is Unknown, with a reason, and kubelet asks
        again. A pod not heard of yet is such a case, also beside a known one: it may be the one that starts.
Rule 4. By pod-resources a pod is found by its name only. A name that two pods could mean, or whose pod is
        being deleted and may have been made anew already, is not certain.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from accelshare.core.objects import Pod, Role

NONCE_ANNOTATION = "accelshare.io/nonce"  # of the container, where no CDI name carries the nonce

_ORDER: dict[Role, int] = {"init": 0, "sidecar": 1, "app": 2}


class Answer(Struct, frozen=True):
    """What kubelet kept of a plugin's answer to Allocate: what it puts into the container."""

    cdi: tuple[str, ...] = ()
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    devices: tuple[str, ...] = ()  # paths on the host


class Allocation(Struct, frozen=True, kw_only=True):
    """One entry of kubelet's checkpoint: one resource of one container."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    nonce: str | None = None  # None: another plugin answered, or we had nothing to inject
    answer: Answer = Answer()


class ContainerDevices(Struct, frozen=True):
    """One of the many pieces in which pod-resources gives a container's ids: one for each id or NUMA node."""

    container: str
    resource: str
    ids: tuple[str, ...]


class PodDevices(Struct, frozen=True):
    """One pod as pod-resources answers. Two of one name are two pods, so they are never joined."""

    namespace: str
    name: str
    devices: tuple[ContainerDevices, ...] = ()


class KnownPod(Struct, frozen=True, kw_only=True):
    """What we know of a pod on this node."""

    uid: str
    namespace: str
    name: str
    containers: tuple[tuple[str, Role], ...]  # in the order in which kubelet starts them
    finished: bool = False
    deleting: bool = False


class Owner(Struct, frozen=True):
    pod_uid: str
    namespace: str
    name: str
    container: str
    nonce: str | None = None  # None by pod-resources, which does not tell it


class Unknown(Struct, frozen=True):
    """Nobody, as far as one can be certain; asking again may bring another answer."""

    reason: str


def known_pod(pod: Pod) -> KnownPod:
    return KnownPod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        containers=tuple((container.name, role) for role, container in pod.containers()),
        finished=pod.finished,
        deleting=pod.metadata.deletionTimestamp is not None,
    )


def owners(
    ids: frozenset[str],
    resource: str,
    *,
    checkpoint: Sequence[Allocation] | None,
    podresources: Sequence[PodDevices] | None,
    pods: Mapping[str, KnownPod],
) -> tuple[Owner, ...] | Unknown:
    """All containers that hold exactly these ids of the resource, init containers first; at least one.

    None for a record means that it could not be read, which is not the same as that it is empty.
    """
    if not ids:
        return Unknown("no ids were asked for")
    if checkpoint is None and podresources is None:
        return Unknown("neither kubelet's checkpoint nor its pod-resources could be read")
    if checkpoint is None:
        return _by_podresources(ids, resource, podresources or (), pods)
    found = _by_checkpoint(ids, resource, checkpoint, pods)
    if podresources is None or isinstance(found, Unknown):
        return found
    return _contradiction(found, ids, resource, podresources, pods) or found


def _by_checkpoint(
    ids: frozenset[str], resource: str, checkpoint: Sequence[Allocation], pods: Mapping[str, KnownPod]
) -> tuple[Owner, ...] | Unknown:
    entries = [entry for entry in checkpoint if entry.resource == resource and entry.ids == ids]
    if not entries:
        return Unknown(f"kubelet's checkpoint names no container that holds these {len(ids)} of {resource}")
    found: list[tuple[int, int, Owner]] = []
    for entry in entries:
        pod = pods.get(entry.pod_uid)
        if pod is None:
            return Unknown(f"pod {entry.pod_uid}, which kubelet gave these ids to, is not known here yet")
        if pod.finished:
            continue
        place = _place(pod, entry.container)
        if place is None:
            return Unknown(
                f"pod {_title(pod)} has no container {entry.container}, which kubelet's checkpoint names"
            )
        owner = Owner(pod.uid, pod.namespace, pod.name, entry.container, entry.nonce)
        found.append((*place, owner))
    if not found:
        return Unknown("the pods that hold these ids are finished")
    twice = _twice(entry.nonce for entry in entries if entry.nonce is not None)
    if twice is not None:
        return Unknown(f"nonce {twice} stands twice in kubelet's checkpoint, though it was given out once")
    found.sort(key=lambda item: (item[0], item[1], item[2].pod_uid))
    return tuple(owner for _, _, owner in found)


def _by_podresources(
    ids: frozenset[str], resource: str, podresources: Sequence[PodDevices], pods: Mapping[str, KnownPod]
) -> tuple[Owner, ...] | Unknown:
    holders = _holders(ids, resource, podresources)
    if not holders:
        return Unknown(f"pod-resources names no container that holds these {len(ids)} of {resource}")
    found: list[Owner] = []
    for namespace, name, container in holders:
        named = [pod for pod in pods.values() if (pod.namespace, pod.name) == (namespace, name)]
        if not named:
            return Unknown(f"pod {namespace}/{name}, which kubelet gave these ids to, is not known here yet")
        if len(named) > 1:
            return Unknown(
                f"{len(named)} pods are called {namespace}/{name}, and pod-resources does not say which"
            )
        pod = named[0]
        if pod.finished:
            continue
        if pod.deleting:
            return Unknown(f"pod {_title(pod)} is being deleted, and a new one may have its name")
        if _place(pod, container) is None:
            return Unknown(f"pod {_title(pod)} has no container {container}, which pod-resources names")
        found.append(Owner(pod.uid, pod.namespace, pod.name, container))
    if not found:
        return Unknown("the pods that hold these ids are finished")
    if len(found) > 1:
        return Unknown(
            f"pod-resources gives the same ids to {len(found)} containers, and one of them must be wrong"
        )
    return tuple(found)


def _contradiction(
    found: tuple[Owner, ...],
    ids: frozenset[str],
    resource: str,
    podresources: Sequence[PodDevices],
    pods: Mapping[str, KnownPod],
) -> Unknown | None:
    """Pod-resources may lack init containers and, up to 1.33, list finished pods; more is a contradiction."""
    names = {(owner.namespace, owner.name, owner.container) for owner in found}
    finished = {(pod.namespace, pod.name) for pod in pods.values() if pod.finished}
    for namespace, name, container in _holders(ids, resource, podresources):
        if (namespace, name, container) not in names and (namespace, name) not in finished:
            return Unknown(
                f"pod-resources gives these ids to {namespace}/{name}, container {container}, "
                "and kubelet's checkpoint does not"
            )
    return None


def _holders(
    ids: frozenset[str], resource: str, podresources: Sequence[PodDevices]
) -> list[tuple[str, str, str]]:
    """Namespace, name and container of all whose pieces, put together, are exactly these ids."""
    out: list[tuple[str, str, str]] = []
    for pod in podresources:
        joined: dict[str, set[str]] = {}
        for piece in pod.devices:
            if piece.resource == resource:
                joined.setdefault(piece.container, set()).update(piece.ids)
        out.extend((pod.namespace, pod.name, container) for container, held in joined.items() if held == ids)
    return out


def _place(pod: KnownPod, container: str) -> tuple[int, int] | None:
    for position, (name, role) in enumerate(pod.containers):
        if name == container:
            return _ORDER[role], position
    return None


def _title(pod: KnownPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _twice(values: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
