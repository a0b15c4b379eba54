"""What is put into a container: later parts win, and the CDI file is what CDI 0.5.0 says."""

import json

import pytest

from accelshare.core.container import DeviceNode, Edits, Mount, cdi_file, cdi_name, merge, nonce_of


def test_later_parts_replace_earlier_ones() -> None:
    """By name of the variable, path of the device, and place in the container."""
    first = Edits(
        env=(("A", "1"), ("B", "1")), devices=(DeviceNode("/dev/gcu0"),), mounts=(Mount("/h1", "/c"),)
    )
    later = Edits(
        env=(("B", "2"),), devices=(DeviceNode("/dev/gcu0", permissions="r"),), mounts=(Mount("/h2", "/c"),)
    )
    assert merge([first, later]) == Edits(
        env=(("A", "1"), ("B", "2")),
        devices=(DeviceNode("/dev/gcu0", permissions="r"),),
        mounts=(Mount("/h2", "/c"),),
    )


def test_nothing_merged_is_nothing() -> None:
    """No parts, no edits."""
    assert merge([]) == Edits()


def test_a_cdi_file_has_one_device_named_by_the_nonce() -> None:
    """All fields as CDI 0.5.0 names them; a device with numbers says that it is a character device."""
    edits = Edits(
        env=(("A", "1"), ("B", "x=y")),
        devices=(DeviceNode("/dev/gcu1"), DeviceNode("/dev/null", 1, 3, "rwm")),
        mounts=(Mount("/h", "/c"), Mount("/w", "/d", read_only=False)),
    )
    assert json.loads(cdi_file("n0nce", edits)) == {
        "cdiVersion": "0.5.0",
        "kind": "accelshare.io/grant",
        "devices": [
            {
                "name": "n0nce",
                "containerEdits": {
                    "env": ["A=1", "B=x=y"],
                    "deviceNodes": [
                        {"path": "/dev/gcu1", "permissions": "rw"},
                        {"path": "/dev/null", "permissions": "rwm", "type": "c", "major": 1, "minor": 3},
                    ],
                    "mounts": [
                        {
                            "hostPath": "/h",
                            "containerPath": "/c",
                            "options": ["ro", "nosuid", "nodev", "bind"],
                        },
                        {
                            "hostPath": "/w",
                            "containerPath": "/d",
                            "options": ["rw", "nosuid", "nodev", "bind"],
                        },
                    ],
                },
            }
        ],
    }


def test_what_is_empty_is_left_out() -> None:
    """Old runtimes refuse an empty list of devices."""
    (device,) = json.loads(cdi_file("n", Edits(env=(("A", "1"),))))["devices"]

    assert device["containerEdits"] == {"env": ["A=1"]}


def test_a_nonce_comes_back_from_its_name() -> None:
    """kubelet's records hold the qualified name."""
    assert cdi_name("abc") == "accelshare.io/grant=abc"
    assert nonce_of(cdi_name("abc")) == "abc"


@pytest.mark.parametrize(
    "name", ["", "abc", "accelshare.io/grant", "accelshare.io/grant=", "other.io/gpu=abc"]
)
def test_a_foreign_name_has_no_nonce(name: str) -> None:
    """Other plugins' devices are none of ours."""
    assert nonce_of(name) is None
