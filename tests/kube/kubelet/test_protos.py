"""The generated messages are those of the .proto files, and those are kubelet's on the wire."""

from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from accelshare.kube.kubelet.protos import cri_pb2, deviceplugin_pb2, pod_pb2, podresources_pb2, pods_pb2
from accelshare.kube.kubelet.protos.generate import HERE, PACKAGE, generate


def test_generating_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """Nobody changed a .proto file without generating, or a generated file by hand."""
    pytest.importorskip("grpc_tools")
    made = {path.name: path.read_bytes() for path in generate(tmp_path)}
    kept = {path.name: path.read_bytes() for path in HERE.glob("*_pb2*")}
    assert made == kept
    assert {path.parent for path in (tmp_path / PACKAGE).iterdir()} == {tmp_path / PACKAGE}


def test_an_allocation_reads_from_bytes_that_kubelet_would_write() -> None:
    """Field numbers 1 to 5 of the answer to Allocate, written by hand."""
    wire = b"".join(
        [
            b"\x0a\x06\x0a\x01K\x12\x01V",  # envs
            b"\x12\x08\x0a\x01c\x12\x01h\x18\x01",  # mounts
            b"\x1a\x09\x0a\x01d\x12\x01e\x1a\x01r",  # devices
            b"\x22\x06\x0a\x01a\x12\x01b",  # annotations
            b"\x2a\x05\x0a\x03v=n",  # cdi_devices
        ]
    )
    answer = deviceplugin_pb2.ContainerAllocateResponse.FromString(wire)
    assert dict(answer.envs) == {"K": "V"}
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts] == [
        ("c", "h", True)
    ]
    assert [(node.container_path, node.host_path, node.permissions) for node in answer.devices] == [
        ("d", "e", "r")
    ]
    assert dict(answer.annotations) == {"a": "b"}
    assert [device.name for device in answer.cdi_devices] == ["v=n"]


def test_a_pod_reads_by_the_numbers_of_kubernetes() -> None:
    """Name 1, namespace 3, uid 5, annotations 12; node 10; phase 1; other fields pass unread."""
    meta = b"\x0a\x01p\x12\x03gen\x1a\x02ns\x2a\x01u\x62\x06\x0a\x01k\x12\x01v"
    spec = b"\x12\x03\x0a\x01c\x52\x01n\xa2\x01\x0c\x0a\x01i\xc2\x01\x06Always"
    status = b"\x0a\x07Running"
    wire = b"".join(
        bytes([tag, len(part)]) + part for tag, part in ((0x0A, meta), (0x12, spec), (0x1A, status))
    )
    pod = pod_pb2.Pod.FromString(wire)
    assert (pod.metadata.name, pod.metadata.namespace, pod.metadata.uid) == ("p", "ns", "u")
    assert dict(pod.metadata.annotations) == {"k": "v"}
    assert pod.spec.node_name == "n"
    assert [container.name for container in pod.spec.containers] == ["c"]
    assert [(each.name, each.restart_policy) for each in pod.spec.init_containers] == [("i", "Always")]
    assert pod.status.phase == "Running"


@pytest.mark.parametrize(
    ("descriptor", "services"),
    [
        (deviceplugin_pb2.DESCRIPTOR, {"v1beta1.Registration", "v1beta1.DevicePlugin"}),
        (podresources_pb2.DESCRIPTOR, {"v1.PodResourcesLister"}),
        (pods_pb2.DESCRIPTOR, {"v1alpha1.Pods"}),
        (cri_pb2.DESCRIPTOR, {"runtime.v1.RuntimeService"}),
    ],
)
def test_services_carry_the_names_that_are_dialled(descriptor: FileDescriptor, services: set[str]) -> None:
    """A service's full name is half of every call's path."""
    found = {service.full_name for service in descriptor.services_by_name.values()}
    assert found == services
