"""The scheduler service without its sockets: each verb as a call, on a state, an Api and a clock handed in.

The HTTP application calls these handlers, and so does whoever simulates a cluster.
"""

from collections import Counter
from collections.abc import Callable

from accelshare.core.grant import Sign
from accelshare.core.objects import Pod
from accelshare.dialects import DIALECTS
from accelshare.services.scheduler.api import Api
from accelshare.services.scheduler.binder import Binder
from accelshare.services.scheduler.metrics import Metrics
from accelshare.services.scheduler.notices import Notices
from accelshare.services.scheduler.nudge import Nudger
from accelshare.services.scheduler.settings import Settings
from accelshare.services.scheduler.state import SchedulerState
from accelshare.services.scheduler.verbs import Filtered, filter_nodes, prioritize_nodes
from accelshare.services.scheduler.wire import (
    AnswerNodes,
    BindArgs,
    ErrorAnswer,
    ExtenderArgs,
    FilterAnswer,
    HostPriority,
    names_of,
)


class Extender:
    def __init__(
        self,
        settings: Settings,
        api: Api,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        wall_ns: Callable[[], int],
        sign: Sign | None = None,
    ) -> None:
        self.settings = settings
        self.state = SchedulerState()
        self.metrics = Metrics()
        self.leads = leads
        self.clock = clock
        self.notices = Notices(api, self.metrics)
        self.nudger = Nudger(self.state, api, self.metrics, leads=leads, clock=clock, wall_ns=wall_ns)
        self.binder = Binder(
            self.state,
            api,
            self.metrics,
            leads=leads,
            clock=clock,
            wall_ns=wall_ns,
            sign=sign,
            on_given_up=self.nudger.ask_again,
        )
        self.state.ledger.on_majority.append(self._unit_changed)
        self._add_gauges()

    def take_over(self) -> None:
        """This replica begins to lead: whoever waits was refused by another one, or before a start."""
        self.state.guess_refused()
        self.nudger.look_at_all()

    def filter(self, args: ExtenderArgs) -> FilterAnswer:
        raw = names_of(args.nodes) if args.nodes is not None else None
        names = args.node_names if args.node_names is not None else list(raw or ())
        found = filter_nodes(self.state, args.pod, names, self.settings.best)
        if found.reasons:
            self._note(args.pod, found)
        elif self.state.refused:
            self.state.refused.forget(args.pod.metadata.uid)
        return FilterAnswer(
            # A caller that gives both gets back what it gave: the two need not agree.
            nodes=AnswerNodes([raw[name] for name in found.fits if name in raw]) if raw is not None else None,
            node_names=found.fits,
            failed_nodes=found.failed,
            failed_and_unresolvable_nodes=found.unresolvable,
        )

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        names = args.node_names
        if names is None:
            names = list(names_of(args.nodes)) if args.nodes is not None else []
        return prioritize_nodes(self.state, args.pod, names)

    async def bind(self, args: BindArgs) -> ErrorAnswer:
        return ErrorAnswer(await self.binder.bind(args))

    def _unit_changed(self, dialect: str) -> None:
        new = self.state.ledger.majority_unit(dialect)
        old = self.notices.unit_before(dialect, new)
        if old and self.leads():
            self.notices.tell_of_unit(DIALECTS[dialect], old, new, self.state.waiting_for(dialect))

    def _note(self, pod: Pod, found: Filtered) -> None:
        """What follows from refusals: who waits for room, and what users are told later."""
        for reason, count in Counter(found.reasons.values()).items():
            self.metrics.refusals.add(str(reason), count)
        wish = found.wish
        if found.fits or wish is None or wish.request is None or wish.shape is None:
            self.state.refused.forget(pod.metadata.uid)
            return
        ours = self.state.ledger.nodes
        # The ledger's own strings are kept, so that a long table of names costs no more than its pointers.
        nodes = (ours[name].name for name in found.reasons if name in ours)
        self.state.refused.note(pod, wish.request, wish.shape, nodes)
        self.notices.refused(pod, found.reasons, found.failed)

    def _add_gauges(self) -> None:
        state, gauge = self.state, self.metrics.gauge
        gauge("accelshare_leader", "Whether this replica leads.", lambda: float(self.leads()))
        gauge("accelshare_nodes", "Nodes in the ledger.", lambda: len(state.ledger.nodes))
        gauge("accelshare_tenants", "Pods that take room of a card.", lambda: len(state.ledger.tenants))
        gauge("accelshare_waiting_pods", "Pending pods that ask for a card.", lambda: len(state.waiting))
        gauge("accelshare_refused_pods", "Pods that no node had room for.", lambda: len(state.refused))
        gauge("accelshare_holds", "Bindings decided and not yet seen.", lambda: len(state.holds))
        gauge("accelshare_holds_in_doubt", "Bindings of unknown outcome.", state.holds.in_doubt)
        gauge("accelshare_binds_running", "Calls of bind under way.", lambda: self.binder.running)
