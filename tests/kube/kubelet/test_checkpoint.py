"""Reading kubelet's checkpoint: what is there is found, what is broken is left out and counted."""

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.container import cdi_name
from accelshare.core.errors import BadInput
from accelshare.core.ownership import NONCE_ANNOTATION
from accelshare.kube.kubelet.checkpoint import read_checkpoint
from accelshare.kube.kubelet.protos.deviceplugin_pb2 import (
    CDIDevice,
    ContainerAllocateResponse,
    DeviceSpec,
)


def entry(
    *,
    uid: str = "uid-1",
    container: str = "main",
    devices: object = None,
    response: ContainerAllocateResponse | None = None,
) -> dict[str, object]:
    encoded = (response or ContainerAllocateResponse()).SerializeToString()
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": "enflame.com/gcu-memory",
        "DeviceIDs": {"-1": ["a", "b"]} if devices is None else devices,
        "AllocResp": base64.b64encode(encoded).decode(),
    }


def file(*entries: object) -> bytes:
    data = {"PodDeviceEntries": list(entries) or None, "RegisteredDevices": {"enflame.com/gcu-memory": ["a"]}}
    return json.dumps({"Data": data, "Checksum": 3141592653}).encode()


def cdi(*names: str) -> ContainerAllocateResponse:
    return ContainerAllocateResponse(cdi_devices=[CDIDevice(name=name) for name in names])


def test_an_entry_says_pod_container_resource_and_ids() -> None:
    """Everything that ownership needs is read from one entry."""
    (found,) = read_checkpoint(file(entry())).allocations
    assert (found.pod_uid, found.container, found.resource) == ("uid-1", "main", "enflame.com/gcu-memory")
    assert found.ids == {"a", "b"}


def test_the_resources_that_plugins_have_listed_are_named() -> None:
    """Kubelet keeps them in mind for minutes after their plugin has gone."""
    assert read_checkpoint(file()).registered == {"enflame.com/gcu-memory"}


def test_ids_of_several_numa_nodes_are_joined() -> None:
    """An id that belongs to two NUMA nodes stands twice in the file and is one id."""
    (found,) = read_checkpoint(file(entry(devices={"0": ["a", "b"], "1": ["b", "c"], "2": None}))).allocations
    assert found.ids == {"a", "b", "c"}


def test_a_plain_list_of_ids_is_read_as_well() -> None:
    """Kubelets up to 1.19 knew no NUMA nodes here."""
    (found,) = read_checkpoint(file(entry(devices=["a", "c"]))).allocations
    assert found.ids == {"a", "c"}


def test_the_nonce_is_found_in_the_cdi_name() -> None:
    """Other plugins' CDI names beside it do not matter."""
    (found,) = read_checkpoint(file(entry(response=cdi("nvidia.com/gpu=0", cdi_name("n1"))))).allocations
    assert found.nonce == "n1"


def test_the_nonce_is_found_in_the_annotation() -> None:
    """Without CDI a container annotation carries it."""
    response = ContainerAllocateResponse(annotations={NONCE_ANNOTATION: "n2", "other": "x"})
    (found,) = read_checkpoint(file(entry(response=response))).allocations
    assert found.nonce == "n2"


def test_another_plugins_answer_has_no_nonce_and_keeps_what_it_injected() -> None:
    """What a foreign plugin gave is told, so that a take-over can say what a container holds."""
    response = ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": "0"},
        devices=[DeviceSpec(host_path="/dev/x", container_path="/dev/y")],
    )
    (found,) = read_checkpoint(file(entry(response=response))).allocations
    assert found.nonce is None
    assert found.answer.env == {"NVIDIA_VISIBLE_DEVICES": "0"}
    assert found.answer.devices == ("/dev/x",)


def test_a_file_without_entries_holds_nothing() -> None:
    """Go writes null for an empty list."""
    assert read_checkpoint(file()).allocations == ()


@pytest.mark.parametrize(
    "bad",
    [
        {"PodUID": "uid-2"},
        entry(uid=""),
        entry(container=""),
        entry(devices={}),
        entry(devices={"0": [1]}),
        entry() | {"AllocResp": "!!"},
        entry() | {"AllocResp": base64.b64encode(b"\xff\xff").decode()},
        entry(response=cdi(cdi_name("n1"), cdi_name("n2"))),
        None,
        7,
    ],
)
def test_a_bad_entry_is_counted_and_does_not_hide_the_good_one(bad: object) -> None:
    """One entry that cannot be understood costs only itself."""
    found = read_checkpoint(file(bad, entry()))
    assert [allocation.pod_uid for allocation in found.allocations] == ["uid-1"]
    assert found.skipped == 1


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"Data": {}}', b'{"Data": null}', b"\xff\xfe", b"[" * 9999]
)
def test_a_file_that_is_none_of_kubelets_is_refused_in_a_sentence(data: bytes) -> None:
    """The error names the file; nothing else is raised."""
    with pytest.raises(BadInput, match="kubelet_internal_checkpoint"):
        read_checkpoint(data)


@given(st.binary())
def test_rubbish_is_refused_and_never_a_crash(data: bytes) -> None:
    """Only BadInput comes out, whatever goes in."""
    with pytest.raises(BadInput):
        read_checkpoint(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ("PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp"), JSON
            ),
        )
    )
)
def test_every_entry_is_either_read_or_counted(entries: list[dict[str, object]]) -> None:
    """No entry is lost in silence, however odd it is."""
    found = read_checkpoint(file(*entries))
    assert len(found.allocations) + found.skipped == len(entries)


@given(st.data())
def test_a_file_cut_short_is_refused(data: st.DataObject) -> None:
    """Half a file is no file: it never reads as fewer allocations."""
    whole = file(entry(), entry(uid="uid-2"))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BadInput):
        read_checkpoint(whole[:cut])


def test_a_hundred_thousand_ids_are_read_quickly() -> None:
    """It is read at every start of a container; the second allowed here is for a busy machine."""
    ids = [f"GCU-T6AX19B46-_-{number}" for number in range(1000)]
    data = file(*(entry(uid=f"uid-{pod}", devices={"0": ids}) for pod in range(100)))
    start = time.perf_counter()
    found = read_checkpoint(data)
    assert len(found.allocations) == 100
    assert time.perf_counter() - start < 1
