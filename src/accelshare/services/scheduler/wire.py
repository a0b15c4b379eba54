"""The JSON of a scheduler extender, in and out.

Go's structs carry no tags, so the keys are CamelCase; up to Kubernetes 1.16 they were lower case, and Go
takes any case. So do we: the usual spelling is decoded straight into its type, any other in a second attempt.
Answers are always CamelCase. Of a pod only the fields that core.objects declares are decoded.
"""

from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from accelshare.core.errors import BadInput
from accelshare.core.objects import Pod

T = TypeVar("T", bound=Struct)


class NodeItems(Struct):
    """A NodeList whose nodes stay as they came: they are handed back, never read but for their names."""

    items: list[Raw] | None = None


class ExtenderArgs(Struct, rename="pascal"):
    """What filter and prioritize are asked. NodeNames where the extender is configured nodeCacheCapable."""

    pod: Pod
    nodes: NodeItems | None = None
    node_names: list[str] | None = None


class BindArgs(Struct):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class AnswerNodes(Struct):
    items: list[Raw]
    metadata: dict[str, str] = {}


class FilterAnswer(Struct, rename="pascal", kw_only=True):
    nodes: AnswerNodes | None = None
    node_names: list[str] | None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(Struct, rename="pascal", gc=False):
    host: str
    score: int


class ErrorAnswer(Struct, rename="pascal"):
    """The answer to bind, and to whatever cannot be answered; an empty text means that it went well."""

    error: str = ""


class _Meta(Struct):
    name: str


class _Named(Struct):
    metadata: _Meta


# What decoding raises: a body may be of the wrong shape, no text at all, or deeper than the stack.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

encode = msgspec.json.Encoder().encode
_NAMED = msgspec.json.Decoder(_Named)
_ANY_CASE = msgspec.json.Decoder(dict[str, Raw])


class Reader(Generic[T]):
    """Decodes one type, whatever the case of its keys. Raises BadInput."""

    def __init__(self, kind: type[T], what: str) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._what = what
        self._spelling: dict[str, str] = {
            field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(kind)
        }

    def read(self, body: bytes) -> T:
        try:
            return self._decoder.decode(body)
        except UNREADABLE as usual:
            return self._respelled(body, usual)

    def _respelled(self, body: bytes, usual: Exception) -> T:
        try:
            given = _ANY_CASE.decode(body)
        except UNREADABLE as failure:
            raise BadInput("the body", _shown(body), f"{self._what} as JSON ({failure})") from failure
        known = {name: value for key, value in given.items() if (name := self._spelling.get(key.lower()))}
        if known.keys() == given.keys():
            raise BadInput("the body", _shown(body), f"{self._what} ({usual})") from usual
        try:
            return self._decoder.decode(encode(known))
        except UNREADABLE as failure:
            raise BadInput("the body", _shown(body), f"{self._what} ({failure})") from failure


def _shown(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")


_ARGS: Reader[ExtenderArgs] = Reader(ExtenderArgs, "ExtenderArgs with Pod and NodeNames or Nodes")
_BIND: Reader[BindArgs] = Reader(BindArgs, "ExtenderBindingArgs with PodName, PodNamespace, PodUID and Node")


def read_args(body: bytes) -> ExtenderArgs:
    args = _ARGS.read(body)
    if args.node_names is None and args.nodes is None:
        # The old spelling of these two alone, which the fast path takes for absent.
        args = _ARGS._respelled(body, msgspec.DecodeError("neither NodeNames nor Nodes are given"))
    return args


def read_bind(body: bytes) -> BindArgs:
    args = _BIND.read(body)
    for name, value in (("PodName", args.pod_name), ("PodUID", args.pod_uid), ("Node", args.node)):
        if not value:
            raise BadInput(name, value, "a name that is not empty")
    return args


def names_of(nodes: NodeItems) -> dict[str, Raw]:
    """The nodes by their names."""
    try:
        return {_NAMED.decode(raw).metadata.name: raw for raw in nodes.items or ()}
    except UNREADABLE as failure:
        raise BadInput("Nodes.items", "...", f"nodes with a name in their metadata ({failure})") from failure
