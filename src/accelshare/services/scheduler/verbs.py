"""filter and prioritize: questions about the state, which write nothing.

Rule 1: a pod that asks for nothing of ours passes everywhere, and one that asks for nonsense nowhere.
Rule 2: a pod that is bound, or whose binding is decided, passes on that node only.
Rule 3: reasons are few texts, in the words of the pod's dialect, since kube-scheduler counts equal ones.
Rule 4: handing on few is choosing by our own policy, so a pod with preferences of its own sees all that fit.
Rule 5: a node in use scores 6 to 10, the fuller the higher, and an unused one below 4: packing wins. Where
        the pod wants to be spread it is the other way round.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct

from accelshare.core.ledger import Ledger
from accelshare.core.objects import Pod
from accelshare.core.placement import Reason
from accelshare.dialects import DIALECTS
from accelshare.dialects.interface import Dialect
from accelshare.services.scheduler.state import SchedulerState, Waiting, score
from accelshare.services.scheduler.wire import HostPriority

_NO_NODE = "\0"  # a name that no node has: shows which texts are the same for all


class Filtered(Struct):
    """The answer, and what others make of it: who may be nudged, and which events users are told."""

    fits: list[str]
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    wish: Waiting | None = None
    reasons: dict[str, Reason] = {}


def filter_nodes(state: SchedulerState, pod: Pod, names: list[str], best: int | None) -> Filtered:
    wish = state.wish(pod)
    if wish.problem:
        return Filtered([], unresolvable=dict.fromkeys(names, wish.problem))
    if wish.request is None or wish.shape is None:
        return Filtered(names)
    tenant = state.ledger.tenants.get(pod.metadata.uid)
    if tenant is not None:
        text = f"the pod's binding to node {tenant.node} is already decided"
        fits = [name for name in names if name == tenant.node]
        return Filtered(fits, failed={name: text for name in names if name != tenant.node})
    fits, reasons = state.verdicts.ask(wish.shape, names)
    failed = _texts(state.ledger, DIALECTS[wish.request.dialect], reasons) if reasons else {}
    if best and len(fits) > best and not pod.has_soft_preferences():
        ranks = list(map(state.ranks.__getitem__, fits))
        if wish.request.node_policy == "emptiest":
            ranks = [-rank for rank in ranks]
        fits = fullest(fits, ranks, best)
    return Filtered(fits, failed, wish=wish, reasons=reasons)


def fullest(names: Sequence[str], ranks: Sequence[int], count: int) -> list[str]:
    """The names with the highest ranks, between equals those that came first. There are more than count."""
    ordered = sorted(ranks)
    last = ordered[-count]
    above = [name for name, rank in zip(names, ranks, strict=True) if rank > last]
    equal = (name for name, rank in zip(names, ranks, strict=True) if rank == last)
    return [*above, *islice(equal, count - len(above))]


def _texts(ledger: Ledger, dialect: Dialect, reasons: dict[str, Reason]) -> dict[str, str]:
    texts = {reason: dialect.refusal(reason, _NO_NODE) for reason in set(reasons.values())}
    failed = {name: texts[reason] for name, reason in reasons.items()}
    own = {reason for reason, text in texts.items() if reason is Reason.OTHER_UNIT or _NO_NODE in text}
    if own:
        for name, reason in reasons.items():
            if reason in own:
                failed[name] = refusal_text(ledger, dialect, name, reason)
    return failed


def refusal_text(ledger: Ledger, dialect: Dialect, name: str, reason: Reason) -> str:
    if reason is not Reason.OTHER_UNIT:
        return dialect.refusal(reason, name)
    unit = ledger.nodes[name].offers[dialect.name].unit.name
    return f"node counts {dialect.primary} in {unit}, most nodes in {ledger.majority_unit(dialect.name)}"


def prioritize_nodes(state: SchedulerState, pod: Pod, names: Iterable[str]) -> list[HostPriority]:
    request = state.wish(pod).request
    if request is None:
        return [HostPriority(name, 0) for name in names]
    if request.node_policy == "emptiest":
        return [_spread(state, name) for name in names]
    return list(map(state.scores.__getitem__, names))


def _spread(state: SchedulerState, name: str) -> HostPriority:
    rank = state.ranks.get(name)
    return HostPriority(name, 0 if rank is None else 10 - score(rank))
