"""bind: decide, hold the room, write once, and never give room back on a guess.

    decide and hold   in one step, nothing awaited between: of two pods that want the last piece, one gets it
    write             one POST that carries node, annotations and UID
    a yes             the hold stays until the watch shows the pod bound
    a definite no     the hold is released, unless an earlier call for it may still land
    anything else     the outcome is in doubt: the pod is read back until it is known, or the grace is over

Whether this replica leads is asked where it decides and right before it writes: the call may have waited for
another one, or for a read, until the Lease was lost.

Asking twice is harmless: a pod that is bound as decided answers yes, a pod whose outcome is in doubt is
posted again with the very same grant. Where kube-scheduler has chosen another node meanwhile, the first hold
stays beside the second one, for the first call may still land.
"""

import asyncio
import logging
from collections.abc import Callable

from accelshare.core.errors import AccelshareError, BadInput
from accelshare.core.grant import GRANT, Sign, write_grant
from accelshare.core.objects import Pod
from accelshare.core.placement import Reason, Rejection, grant, place, refusal
from accelshare.dialects import DIALECTS
from accelshare.kube.api.errors import ApiError, Conflict, NotFound
from accelshare.services.scheduler.api import Api
from accelshare.services.scheduler.holds import GRACE_SECONDS, Hold
from accelshare.services.scheduler.metrics import Metrics
from accelshare.services.scheduler.state import SchedulerState, Waiting, waiting
from accelshare.services.scheduler.verbs import refusal_text
from accelshare.services.scheduler.wire import BindArgs

_log = logging.getLogger(__name__)

# kube-scheduler waits 5 s for an extender: our own call must be over before.
POST_SECONDS = 4.0
READ_SECONDS = 2.0  # for what has to be read before it


class NotBound(Exception):
    """This binding is not made; the text says why. It never leaves this module."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class _Turn:
    """Calls for one pod, which run one after the other."""

    __slots__ = ("calls", "lock")

    def __init__(self) -> None:
        self.calls = 0
        self.lock = asyncio.Lock()


class Binder:
    def __init__(
        self,
        state: SchedulerState,
        api: Api,
        metrics: Metrics,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        wall_ns: Callable[[], int],
        sign: Sign | None,
        on_given_up: Callable[[Pod], None] = lambda pod: None,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._state = state
        self._api = api
        self._metrics = metrics
        self._leads = leads
        self._clock = clock
        self._wall_ns = wall_ns
        self._sign = sign
        self._on_given_up = on_given_up  # told a pod that kube-scheduler should be asked about again
        self._read_seconds = read_seconds
        self._turns: dict[str, _Turn] = {}

    @property
    def running(self) -> int:
        """Calls of bind that are not answered yet."""
        return sum(turn.calls for turn in self._turns.values())

    async def bind(self, args: BindArgs) -> str:
        """ "" when the pod is bound as decided, else why it is not."""
        # kube-scheduler may ask again while an earlier call for the same pod is still under way.
        turn = self._turns.setdefault(args.pod_uid, _Turn())
        turn.calls += 1
        try:
            async with turn.lock:
                outcome = await self._bind(args)
            text = ""
        except NotBound as why:
            outcome, text = why.outcome, str(why)
        finally:
            turn.calls -= 1
            if not turn.calls:
                del self._turns[args.pod_uid]
        self._metrics.binds.add(outcome)
        return text

    async def _bind(self, args: BindArgs) -> str:
        try:
            async with asyncio.timeout(self._read_seconds):
                wish = await self._wish(args)
        except TimeoutError:
            text = f"the pod could not be read within {self._read_seconds:g} s"
            raise NotBound("unreadable", text) from None
        if wish is None:
            return "already"
        if wish.request is None and not wish.problem:
            return await self._bind_without_a_card(args, wish)
        hold = self._decide(args, wish)
        if hold is None:
            return "already"
        return await self._post(hold)

    async def _bind_without_a_card(self, args: BindArgs, wish: Waiting) -> str:
        """It names a resource of ours and asks for none of it: kube-scheduler leaves its binding to us."""
        self._only_the_leader()
        meta = wish.pod.metadata
        try:
            await self._api.bind(
                meta.namespace, meta.name, args.pod_uid, args.node, {}, meta.annotations, POST_SECONDS
            )
        except Conflict as error:
            pod = await self._read_after(args)
            if pod is not None and pod.metadata.uid == args.pod_uid and pod.node == args.node:
                return "already"
            raise NotBound("refused by the API server", str(error)) from error
        except AccelshareError as error:
            raise NotBound("refused by the API server", str(error)) from error
        return "bound without a card"

    async def _read_after(self, args: BindArgs) -> Pod | None:
        try:
            return await self._api.read_pod(args.pod_namespace, args.pod_name)
        except AccelshareError:
            return None

    # --- what is asked for -----------------------------------------------------------------------------

    async def _wish(self, args: BindArgs) -> Waiting | None:
        """None where the pod is bound as asked already. Whatever has to be read is read here."""
        known = self._state.waiting.get(args.pod_uid)
        try:
            if known is not None and await self._api.binding_checks_uid():
                return known
            if self._bound(args):
                return None
            pod = await self._api.read_pod(args.pod_namespace, args.pod_name)
        except NotFound:
            raise NotBound("gone", f"pod {args.pod_namespace}/{args.pod_name} does not exist") from None
        except AccelshareError as failure:
            raise NotBound("unreadable", f"the pod could not be read: {failure}") from failure
        if pod.metadata.uid != args.pod_uid:
            text = f"pod {pod.key} has UID {pod.metadata.uid}, and {args.pod_uid} was to be bound"
            raise NotBound("gone", text)
        if pod.node:
            self._state.pod_changed(pod)
            if self._bound(args):
                return None
        return waiting(pod)

    def _bound(self, args: BindArgs) -> bool:
        """Whether the ledger has seen the pod bound; refused where that is elsewhere, or without a grant."""
        tenant = self._state.ledger.tenants.get(args.pod_uid)
        if tenant is None or tenant.held:
            return False
        if tenant.node != args.node:
            raise NotBound("elsewhere", f"the pod is bound to node {tenant.node} already")
        if tenant.problem:
            raise NotBound("elsewhere", f"the pod is bound to node {tenant.node} already: {tenant.problem}")
        return True

    # --- decide and hold: nothing is awaited here -------------------------------------------------------

    def _decide(self, args: BindArgs, wish: Waiting) -> Hold | None:
        """The hold to be posted, None where the pod has meanwhile been seen bound as asked."""
        self._only_the_leader()
        if self._bound(args):
            return None
        standing = self._state.holds.main(args.pod_uid)
        if standing is not None and standing.node == args.node:
            return None if standing.confirmed else standing
        if standing is not None and standing.confirmed:
            raise NotBound("elsewhere", f"the pod is bound to node {standing.node} already")
        hold = self._placed(args, wish)
        if standing is not None:
            self._state.put_beside(standing)
        self._state.hold(hold)
        return hold

    def _only_the_leader(self) -> None:
        if not self._leads():
            raise NotBound("not the leader", "this replica leads no more; ask the one that does")

    def _placed(self, args: BindArgs, wish: Waiting) -> Hold:
        if wish.problem:
            raise NotBound("nonsense", wish.problem)
        if wish.request is None or wish.shape is None:
            raise NotBound("nonsense", f"pod {wish.pod.key} asks for nothing that accelshare binds")
        dialect = DIALECTS[wish.request.dialect]
        ledger = self._state.ledger
        node = ledger.nodes.get(args.node)
        reason = refusal(wish.shape, node, ledger.majority_unit(dialect.name))
        if node is None or reason is not None:
            raise NotBound("refused", refusal_text(ledger, dialect, args.node, reason or Reason.UNKNOWN_NODE))
        placement = place(wish.shape, node)
        if isinstance(placement, Rejection):
            raise NotBound("refused", refusal_text(ledger, dialect, args.node, placement.reason))
        decided = grant(wish.request, placement, node, args.pod_uid, self._wall_ns())
        now = self._clock()
        return Hold(
            pod=wish.pod,
            grant=decided,
            annotations={
                **dialect.write(wish.pod, decided, node.cards),
                GRANT: write_grant(decided, self._sign),
            },
            key=decided.uid,
            posted_at=now,
            read_at=now,
        )

    # --- write ------------------------------------------------------------------------------------------

    async def _post(self, hold: Hold) -> str:
        meta = hold.pod.metadata
        try:
            self._only_the_leader()
        except NotBound:
            self._give_back(hold)  # what this call has not sent cannot land; an earlier one's room stays
            raise
        hold.posted_at = hold.read_at = self._clock()
        try:
            await self._api.bind(
                meta.namespace,
                meta.name,
                hold.uid,
                hold.node,
                hold.annotations,
                meta.annotations,
                POST_SECONDS,
            )
        except BadInput as error:
            self._metrics.posts.add("malformed")
            self._give_back(hold)
            raise NotBound("nonsense", str(error)) from error
        except Conflict as error:
            self._metrics.posts.add("conflict")
            return await self._after_conflict(hold, error)
        except ApiError as error:
            return self._after_error(hold, error)
        except BaseException:
            hold.in_doubt = True  # cancelled while the call was under way
            raise
        self._metrics.posts.add("yes")
        self._confirm(hold)
        return await self._checked(hold)

    def _after_error(self, hold: Hold, error: ApiError) -> str:
        if error.definite:
            self._metrics.posts.add("no")
            self._give_back(hold)
            raise NotBound("refused by the API server", str(error)) from error
        self._metrics.posts.add("in doubt")
        hold.in_doubt = True
        if self._seen_as_decided(hold):
            return "bound"
        raise NotBound(
            "in doubt", f"{error}; the room on node {hold.node} stays held for this pod"
        ) from error

    async def _after_conflict(self, hold: Hold, error: Conflict) -> str:
        """It is bound already, by whomever; or another pod has the name; or it is being deleted."""
        try:
            pod = await self._api.read_pod(hold.pod.metadata.namespace, hold.pod.metadata.name)
        except NotFound:
            self._gone(hold.uid)
            raise NotBound("gone", str(error)) from error
        except AccelshareError as failure:
            hold.in_doubt = True
            raise NotBound("in doubt", f"{error}, and the pod could not be read: {failure}") from failure
        self._learn(hold, pod)
        if self._seen_as_decided(hold):
            return "already"
        if pod.metadata.uid == hold.uid and not pod.node:
            self._give_back(hold)
        raise NotBound("elsewhere" if pod.node else "refused by the API server", str(error)) from error

    async def _checked(self, hold: Hold) -> str:
        """Where the server ignores the UID, another pod of this name may have got the node and the grant."""
        if await self._api.binding_checks_uid():
            return "bound"
        meta = hold.pod.metadata
        try:
            pod = await self._api.read_pod(meta.namespace, meta.name)
            if pod.metadata.uid == hold.uid:
                return "bound"
            await self._discard(hold, pod)
        except NotFound:
            pass
        except AccelshareError as failure:
            hold.confirmed, hold.in_doubt = False, True
            raise NotBound("in doubt", f"the pod could not be read back: {failure}") from failure
        self._gone(hold.uid)
        name = f"{meta.namespace}/{meta.name}"
        raise NotBound(
            "gone", f"pod {name} was replaced while it was bound, and what took its name is deleted"
        )

    async def _discard(self, hold: Hold, pod: Pod) -> None:
        """Deletes a pod that got the node and the grant of another of its name."""
        if pod.metadata.uid != hold.uid and hold.is_this(pod):
            await self._api.delete_pod(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)

    # --- what is learned ---------------------------------------------------------------------------------

    def _confirm(self, hold: Hold) -> None:
        """It is bound as decided, so nothing else that was tried for this pod can land any more."""
        hold.confirmed = True
        for other in self._state.holds.of(hold.uid):
            if other is not hold:
                self._state.release(other)

    def _seen_as_decided(self, hold: Hold) -> bool:
        tenant = self._state.ledger.tenants.get(hold.uid)
        seen = tenant is not None and not tenant.held and tenant.node == hold.node and not tenant.problem
        return hold.confirmed or seen

    def _give_back(self, hold: Hold) -> None:
        """After a definite no; but what an earlier call may still do is not settled by a later one's no."""
        if not hold.in_doubt:
            self._state.release(hold)

    def _gone(self, uid: str) -> None:
        self._state.release_all(uid)

    def _learn(self, hold: Hold, pod: Pod) -> str:
        """Draws the consequence of a pod read back, and says in a word what it was."""
        hold.read_at = self._clock()
        if pod.metadata.uid != hold.uid:
            self._gone(hold.uid)
            return "replaced"
        if pod.finished:
            self._state.pod_changed(pod)
            return "finished"
        if hold.is_this(pod):
            self._confirm(hold)
            return "bound"
        if pod.node:
            # By another call of ours, or by somebody else: no call for this hold can land any more.
            others = [other for other in self._state.holds.of(hold.uid) if other.is_this(pod)]
            if others:
                self._confirm(others[0])
            else:
                self._gone(hold.uid)
                self._state.pod_changed(pod)
            return "elsewhere"
        if hold.in_doubt and self._clock() - hold.posted_at >= GRACE_SECONDS:
            self._state.release(hold)
            self._on_given_up(pod)
            return "given up"
        return "waiting"

    async def sweep(self) -> None:
        """Reads back every pod whose outcome should be known by now."""
        for hold in self._state.holds.to_read(self._clock()):
            if hold.uid in self._turns:
                continue  # a call for it is under way and will tell
            meta = hold.pod.metadata
            try:
                pod = await self._api.read_pod(meta.namespace, meta.name)
                await self._discard(hold, pod)
            except NotFound:
                self._gone(hold.uid)
                self._metrics.reads.add("gone")
            except AccelshareError as failure:
                hold.read_at = self._clock()
                self._metrics.reads.add("unreadable")
                _log.info("pod %s, whose binding is in doubt, could not be read: %s", hold.pod.key, failure)
            else:
                self._metrics.reads.add(self._learn(hold, pod))
