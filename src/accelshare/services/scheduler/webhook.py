"""Admission: what is wrong with a pod is said when it is made, and nobody but the scheduler service grants.

    mutate    gives each container that asks for a counted resource the slot that kubelet hands out for it
    validate  refuses a pod that asks for nonsense, and grants that anybody else writes, copies or takes away

Both are pure, so every replica answers. Where the webhook is away, filter refuses nonsense with the same
text, and grants are still taken only from bound pods and only with a signature.
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from accelshare.core.errors import BadInput
from accelshare.core.grant import GRANT, ContainerGrant, Grant, Share
from accelshare.core.inventory import Card
from accelshare.core.objects import Container, Meta, Pod, PodSpec
from accelshare.core.units import GIB
from accelshare.dialects import DIALECTS, SLOT, request_of
from accelshare.dialects.amounts import amount
from accelshare.dialects.interface import Dialect, MarksStart
from accelshare.services.scheduler.wire import UNREADABLE, encode

Patch = list[dict[str, object]]


class _User(Struct):
    username: str = ""


class _Object(Struct):
    """A pod or a binding: what is read of either."""

    metadata: Meta | None = None
    spec: PodSpec | None = None


class AdmissionRequest(Struct, rename="camel"):
    uid: str
    operation: str = ""
    sub_resource: str | None = None
    user_info: _User = msgspec.field(default_factory=_User)
    object: _Object | None = None
    old_object: _Object | None = None


class AdmissionReview(Struct, rename="camel"):
    request: AdmissionRequest
    api_version: str = "admission.k8s.io/v1"


class _Status(Struct):
    message: str
    code: int


class _Response(Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    patch_type: str = ""
    patch: str = ""


class _Reviewed(Struct, rename="camel"):
    response: _Response
    api_version: str
    kind: Literal["AdmissionReview"] = "AdmissionReview"


_REVIEW = msgspec.json.Decoder(AdmissionReview)


def read_review(body: bytes) -> AdmissionReview:
    try:
        return _REVIEW.decode(body)
    except UNREADABLE as error:
        shown = body[:200].decode("utf-8", "replace")
        raise BadInput("the body", shown, f"an AdmissionReview ({error})") from error


# --- mutate ---------------------------------------------------------------------------------------------


def mutate(review: AdmissionReview, counted: Iterable[str]) -> bytes:
    request = review.request
    patch: Patch = []
    pod = _pod(request.object)
    if pod is not None and request.operation == "CREATE" and not request.sub_resource:
        patch = slots(pod, [DIALECTS[name] for name in counted])
    response = _Response(request.uid, allowed=True)
    if patch:
        response.patch_type, response.patch = "JSONPatch", base64.b64encode(encode(patch)).decode()
    return encode(_Reviewed(response, review.api_version))


def slots(pod: Pod, counted: Iterable[Dialect]) -> Patch:
    """One slot for each container that asks, and lacks it. Nonsense is left to validate."""
    try:
        request = request_of(pod, counted)
        asking = {container.name for container in request.containers} if request is not None else set()
        return [
            step
            for field, containers in (
                ("initContainers", pod.spec.initContainers),
                ("containers", pod.spec.containers),
            )
            for at, container in enumerate(containers or ())
            if container.name in asking and not amount(container, SLOT)
            for step in _slot(f"/spec/{field}/{at}/resources", container)
        ]
    except BadInput:
        return []


def _slot(path: str, container: Container) -> Patch:
    """Limits and requests: the two of an extended resource must be equal."""
    resources = container.resources
    steps: Patch = []
    for field, standing in (
        ("limits", resources.limits if resources else None),
        ("requests", resources.requests if resources else None),
    ):
        if standing is None:
            steps.append({"op": "add", "path": f"{path}/{field}", "value": {SLOT: "1"}})
        else:
            steps.append({"op": "add", "path": f"{path}/{field}/{SLOT.replace('/', '~1')}", "value": "1"})
    return steps


# --- validate -------------------------------------------------------------------------------------------


def validate(review: AdmissionReview, service_account: str) -> tuple[bytes, bool]:
    """The answer, and whether the object is let in."""
    request = review.request
    response = _Response(request.uid, allowed=True)
    if request.user_info.username != service_account:
        written = foreign_grants(request)
        if written:
            response.allowed = False
            response.status = _Status(
                f"{', '.join(written)}: grants are written by accelshare's scheduler service when it binds a "
                "pod, and by nobody else",
                403,
            )
    nonsense = _nonsense(request)
    if response.allowed and nonsense:
        response.allowed, response.status = False, _Status(nonsense, 400)
    return encode(_Reviewed(response, review.api_version)), response.allowed


def foreign_grants(request: AdmissionRequest) -> list[str]:
    """The grant annotations that this request would write, change or take away."""
    now, before = _annotations(request.object), _annotations(request.old_object)
    return [key for key in sorted(PROTECTED) if now.get(key) != before.get(key)]


def _nonsense(request: AdmissionRequest) -> str:
    pod = _pod(request.object)
    if pod is None or request.operation != "CREATE" or request.sub_resource:
        return ""
    try:
        request_of(pod)
    except BadInput as error:
        return str(error)
    return ""


def _pod(found: _Object | None) -> Pod | None:
    if found is None or found.spec is None:
        return None
    return Pod(found.metadata or Meta(), found.spec)


def _annotations(found: _Object | None) -> Mapping[str, str]:
    return (found.metadata.annotations if found is not None and found.metadata is not None else None) or {}


def _written_by(dialect: Dialect) -> set[str]:
    """The keys of a dialect's grant, as it writes them; without those that say "the container has it".

    Those an agent sets after the fact, and they grant nothing.
    """
    card = Card(id="sample", index=0, memory=16 * GIB, minor=0)
    share = Share(card.id, card.index, card.memory)
    grant = Grant(
        dialect=dialect.name,
        uid="sample",
        node="sample",
        containers=(ContainerGrant("sample", "app", (share,), 1),),
        unit=next(iter(dialect.units), ""),
    )
    pod = Pod(Meta(name="sample", uid="sample"), PodSpec([Container("sample")], nodeName="sample"))
    written = dialect.write(pod, grant, (card,))
    if isinstance(dialect, MarksStart):
        return written.keys() - dialect.started(Pod(Meta(annotations=dict(written)), PodSpec())).keys()
    return set(written)


PROTECTED = frozenset({GRANT}).union(*(_written_by(dialect) for dialect in DIALECTS.values()))
