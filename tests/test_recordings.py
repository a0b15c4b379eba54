"""What real components said is read as it was meant: the recordings in tests/recordings."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accelshare.core.grant import grant_of
from accelshare.core.objects import Pod
from accelshare.core.ownership import Owner, known_pod, owners
from accelshare.dialects import request_of
from accelshare.kube.kubelet.checkpoint import read_checkpoint
from accelshare.services.scheduler.wire import read_args, read_bind

FOLDER = Path(__file__).parent / "recordings"


def calls(verb: str) -> list[dict[str, Any]]:
    (path,) = FOLDER.glob("kube-scheduler-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [call for call in lines if call["path"] == f"/{verb}"]


def pods() -> dict[str, Pod]:
    (path,) = FOLDER.glob("pods-*.json")
    return {pod.metadata.name: pod for pod in msgspec.json.decode(path.read_bytes(), type=list[Pod])}


@pytest.mark.parametrize("call", calls("filter"))
def test_a_recorded_filter_call_is_understood(call: dict[str, Any]) -> None:
    """kube-scheduler's own spelling: names only, and a pod whose request is read in units."""
    args = read_args(json.dumps(call["request"]).encode())
    assert args.node_names == ["node-1"]
    assert args.nodes is None
    request = request_of(args.pod)
    assert request is not None
    assert request.containers[0].ask.memory.count in (4, 8, 12, 20)


@pytest.mark.parametrize("call", calls("bind"))
def test_a_recorded_bind_call_is_understood(call: dict[str, Any]) -> None:
    """All four fields are there, and the pod was bound where the call says."""
    args = read_bind(json.dumps(call["request"]).encode())
    assert pods()[args.pod_name].metadata.uid == args.pod_uid
    assert pods()[args.pod_name].node == args.node


def test_prioritize_is_skipped_where_one_node_fits() -> None:
    """So a score can never be relied on where there is no choice."""
    assert calls("prioritize") == []


def test_kubelets_checkpoint_tells_exactly_whose_ids_are_whose() -> None:
    """Each allocation has one owner, our answer's nonce, and as many ids as the pod was granted units."""
    (path,) = FOLDER.glob("kubelet-checkpoint-*.json")
    checkpoint = read_checkpoint(path.read_bytes())
    known = {pod.metadata.uid: known_pod(pod) for pod in pods().values()}
    granted = {}
    for allocation in checkpoint.allocations:
        found = owners(
            allocation.ids,
            "enflame.com/gcu-memory",
            checkpoint=checkpoint.allocations,
            podresources=None,
            pods=known,
        )
        assert isinstance(found, tuple)
        (owner,) = found
        assert owner == Owner(allocation.pod_uid, "guide", owner.name, "main", allocation.nonce)
        granted[owner.name] = len(allocation.ids)
    assert checkpoint.skipped == 0
    assert granted == {"gcushare-pod-1": 4, "gcushare-pod-2": 8, "gcushare-pod-3": 12}


def test_the_bound_pods_carry_grants_of_their_own() -> None:
    """Node, UID and amounts in the annotation are the pod's."""
    for name, units in {"gcushare-pod-1": 4, "gcushare-pod-2": 8, "gcushare-pod-3": 12}.items():
        signed = grant_of(pods()[name])
        assert signed is not None
        assert signed.signature
        assert [part.units for part in signed.grant.containers] == [units]
    assert grant_of(pods()["gcushare-pod-4"]) is None
