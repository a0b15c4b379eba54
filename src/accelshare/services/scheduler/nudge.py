"""Freed room is offered at once: one patch on a waiting pod makes kube-scheduler ask about it again.

kube-scheduler does not ask again about a pod that an extender refused before some event of the cluster; and
when it hears of a deletion before we do, it asks, is told "full", and falls silent. So every change of the
ledger that turns a refusal into a fit nudges.

    choose    pure: on a scratch copy of the node's room, whose turn it is; nobody else for the same piece
    Nudger    does it, and looks again when the first did not take the piece within two seconds

A nudge that finds no room lengthens the pod's back-off, so one pod per freed piece comes first.
"""

import asyncio
import copy
import logging
from collections.abc import Callable, Iterable

from accelshare.core.errors import AccelshareError
from accelshare.core.ledger import NodeState, Tenant
from accelshare.core.grant import charges
from accelshare.core.objects import Pod
from accelshare.core.placement import Placement, grant, place, refusal
from accelshare.services.scheduler.api import Api
from accelshare.services.scheduler.metrics import Metrics
from accelshare.services.scheduler.refusals import Refused
from accelshare.services.scheduler.state import SchedulerState

_log = logging.getLogger(__name__)

NUDGE = "accelshare.io/nudge"

ANSWER_SECONDS = 2.0  # within which a nudged pod is asked about, where kube-scheduler is well
LONGEST_PAUSE = 60.0
TICK_SECONDS = 0.5


