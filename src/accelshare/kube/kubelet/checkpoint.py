"""Reads kubelet's record of who got which ids: kubelet_internal_checkpoint in its device-plugin directory.

    {"Data": {"PodDeviceEntries": [{"PodUID", "ContainerName", "ResourceName",
                                    "DeviceIDs": {"<NUMA node>": [ids]}, "AllocResp": base64}, ...],
              "RegisteredDevices": {...}}, "Checksum": n}

Up to 1.19 DeviceIDs was a plain list. An id that belongs to several NUMA nodes stands under each of them.
kubelet writes the file under another name and renames it, so what is read is always one whole state; its
checksum is over Go's memory layout and cannot be checked here.

One bad entry does not hide the others: it is left out and counted, and its ids then belong to nobody.
"""

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Raw, Struct

from accelshare.core.container import nonce_of
from accelshare.core.errors import BadInput
from accelshare.core.ownership import NONCE_ANNOTATION, Allocation, Answer
from accelshare.kube.kubelet.protos.deviceplugin_pb2 import ContainerAllocateResponse

FILE_NAME = "kubelet_internal_checkpoint"


class Checkpoint(Struct, frozen=True):
    allocations: tuple[Allocation, ...]
    skipped: int = 0  # entries that could not be understood
    registered: frozenset[str] = (
        frozenset()
    )  # resources that plugins listed devices of, and kubelet remembers


class _Entry(Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | list[str] = msgspec.field(name="DeviceIDs")
    alloc_resp: bytes


class _Data(Struct, rename="pascal"):
    pod_device_entries: list[Raw] | None  # Go writes null for an empty list
    registered_devices: dict[str, Raw] | None = None


class _File(Struct, rename="pascal"):
    data: _Data


_file = msgspec.json.Decoder(_File)
_entry = msgspec.json.Decoder(_Entry)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_checkpoint(data: bytes) -> Checkpoint:
    """Raises BadInput where the file as a whole is none of kubelet's."""
    try:
        found = _file.decode(data).data
    except _UNREADABLE as error:
        raise BadInput(FILE_NAME, data[:100], f"the JSON that kubelet writes ({error})") from error
    raw = found.pod_device_entries or []
    read = [allocation for allocation in map(_allocation, raw) if allocation is not None]
    registered = frozenset(found.registered_devices or ())
    return Checkpoint(tuple(read), skipped=len(raw) - len(read), registered=registered)


def _allocation(raw: Raw) -> Allocation | None:
    try:
        entry = _entry.decode(raw)
        response = ContainerAllocateResponse.FromString(entry.alloc_resp)
    except (*_UNREADABLE, DecodeError):
        return None
    answer = _answer(response)
    nonces = _nonces(answer)
    ids = _ids(entry.device_ids)
    # We draw one nonce for each call, so an answer with two of them is none that we gave.
    if not (entry.pod_uid and entry.container_name and entry.resource_name and ids) or len(nonces) > 1:
        return None
    return Allocation(
        pod_uid=entry.pod_uid,
        container=entry.container_name,
        resource=entry.resource_name,
        ids=ids,
        nonce=next(iter(nonces), None),
        answer=answer,
    )


def _ids(devices: dict[str, list[str] | None] | list[str]) -> frozenset[str]:
    if isinstance(devices, list):
        return frozenset(devices)
    return frozenset().union(*(ids for ids in devices.values() if ids))


def _answer(response: ContainerAllocateResponse) -> Answer:
    return Answer(
        cdi=tuple(device.name for device in response.cdi_devices),
        env=dict(response.envs),
        annotations=dict(response.annotations),
        devices=tuple(device.host_path for device in response.devices),
    )


def _nonces(answer: Answer) -> set[str]:
    found = {nonce_of(name) for name in answer.cdi}
    found.add(answer.annotations.get(NONCE_ANNOTATION) or None)
    return {nonce for nonce in found if nonce is not None}
