"""The flags and configuration files of every program that a cluster runs, as pure functions.

Each line that is not obvious says what happens without it.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .pki import Pki
from .process import LabError

DAEMONS = ("etcd", "apiserver", "controllers", "scheduler", "containerd", "kubelet")
AUDIENCE = "https://kubernetes.default.svc"
_SERVICES = "10.96.0.0/16"
_PODS = "10.88.0.0/16"

Ports = Mapping[str, int]
Gates = Mapping[str, bool]


def scheduler_config(
    extender: Mapping[str, Any] | None, pod_max_backoff: int = 2, profiles: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration, with at most one extender: its entry as the reference has it (urlPrefix,
    filterVerb, managedResources, …), where what is not given is set as the project's chart sets it."""
    written: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": pod_max_backoff,
    }
    if extender is not None:
        defaults = {
            "weight": 1,
            "enableHTTPS": False,
            "httpTimeout": "5s",
            "nodeCacheCapable": True,
            "ignorable": False,
        }
        written["extenders"] = [{**defaults, **extender}]
    if profiles:
        written["profiles"] = [dict(profile) for profile in profiles]
    return written


def scheduler(configuration: Mapping[str, Any], pki: Pki) -> dict[str, Any]:
    # Its client is limited to 50 requests/s otherwise, which would be what every measurement measures.
    connection = {"kubeconfig": pki["scheduler.kubeconfig"], "qps": 5000, "burst": 5000}
    return {**configuration, "clientConnection": connection}


def etcd_flags(directory: Path, ports: Ports) -> list[str]:
    client, peer = f"http://127.0.0.1:{ports['etcd']}", f"http://127.0.0.1:{ports['etcd-peer']}"
    flags = {
        "name": "lab",
        "data-dir": f"{directory}/etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"lab={peer}",
        "unsafe-no-fsync": "true",  # the data lives as long as the test
        "logger": "zap",
        "log-level": "warn",
    }
    return _command(program("etcd"), flags)


def api_server_flags(bin_dir: Path, pki: Pki, ports: Ports, gates: Gates) -> list[str]:
    flags = {
        "etcd-servers": f"http://127.0.0.1:{ports['etcd']}",
        "bind-address": "127.0.0.1",
        "secure-port": ports["apiserver"],
        "service-cluster-ip-range": _SERVICES,
        "endpoint-reconciler-type": "none",  # an endpoint must not be a loopback address
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "token-auth-file": pki["tokens.csv"],
        "client-ca-file": pki["ca.crt"],
        "tls-cert-file": pki["apiserver.crt"],
        "tls-private-key-file": pki["apiserver.key"],
        "service-account-issuer": AUDIENCE,
        "service-account-key-file": pki["sa.key"],
        "service-account-signing-key-file": pki["sa.key"],
        # Without these, scheduler and controllers complain every few seconds.
        "requestheader-client-ca-file": pki["ca.crt"],
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        # For logs and exec. Of a node's addresses only its name leads to loopback, by a line in /etc/hosts.
        "kubelet-preferred-address-types": "Hostname",
        "kubelet-client-certificate": pki["apiserver-kubelet-client.crt"],
        "kubelet-client-key": pki["apiserver-kubelet-client.key"],
        "kubelet-certificate-authority": pki["ca.crt"],
    }
    return _command(bin_dir / "kube-apiserver", flags, gates)


def controllers_flags(bin_dir: Path, directory: Path, pki: Pki, ports: Ports, gates: Gates) -> list[str]:
    flags = {
        **_serving(pki, "controllers", ports["controllers"]),
        "kubeconfig": pki["controllers.kubeconfig"],
        "root-ca-file": pki["ca.crt"],
        "service-account-private-key-file": pki["sa.key"],
        "cluster-signing-cert-file": pki["ca.crt"],
        "cluster-signing-key-file": pki["ca.key"],
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "allocate-node-cidrs": "false",
        # A new node stays tainted until the second look at it; by default looks are 5 s apart.
        "node-monitor-period": "500ms",
        # Its default lies outside of the cluster's directory, and is made at the start.
        "flex-volume-plugin-dir": f"{directory}/volume-plugins",
        # Hundreds of nodes lose their taint one request at a time.
        "kube-api-qps": 500,
        "kube-api-burst": 1000,
    }
    return _command(bin_dir / "kube-controller-manager", flags, gates)


def scheduler_flags(bin_dir: Path, pki: Pki, path: Path, port: int, gates: Gates) -> list[str]:
    return _command(bin_dir / "kube-scheduler", {"config": path, **_serving(pki, "scheduler", port)}, gates)


def kubelet_flags(bin_dir: Path, pki: Pki, path: Path, node: str) -> list[str]:
    flags = {
        "config": path,
        "kubeconfig": pki["kubelet.kubeconfig"],
        "hostname-override": node,
        "root-dir": "/var/lib/kubelet",
        "cert-dir": path.parent / "kubelet-pki",
        "v": 2,
    }
    return _command(bin_dir / "kubelet", flags)


def kubelet(directory: Path, pki: Pki, ports: Ports, gates: Gates) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": ports["kubelet"],
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": ports["kubelet-health"],
        "containerRuntimeEndpoint": f"unix://{directory}/containerd/containerd.sock",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": pki["ca.crt"]},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki["serving.crt"],
        "tlsPrivateKeyFile": pki["serving.key"],
        "clusterDomain": "cluster.local",
        "failSwapOn": False,
        "oomScoreAdj": 0,  # lowering it needs a capability that containers and small virtual machines lack
        # A disk that is nearly full must evict no pod and collect no image, which nobody could pull again.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "5s",
        # Their defaults lie outside of the cluster's directory.
        "podLogsDir": f"{directory}/pod-logs",
        "volumePluginDir": f"{directory}/volume-plugins",
        "featureGates": dict(gates),
    }


def containerd(directory: Path, cdi_dir: Path, *, cdi: bool) -> str:
    own = directory / "containerd"
    return f"""\
version = 3
root = "{own}/root"
state = "{own}/state"
oom_score = 0

[grpc]
  address = "{own}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{own}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.image-verifier.v1.bindir"]
  bin_dir = "{own}/image-verifier"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_cdi = {json.dumps(cdi)}
  cdi_spec_dirs = ["{cdi_dir}"]
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{program("runc")}"
        Root = "{own}/runc"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_plugins()}"]
    conf_dir = "{directory}/cni"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"""


def write_network(folder: Path, name: str) -> None:
    """Each pod gets a veth pair and an address; without masquerading, no firewall rule is made."""
    addresses = {
        "type": "host-local",
        "dataDir": f"{folder}/addresses",
        "ranges": [[{"subnet": _PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [{"type": "ptp", "ipMasq": False, "ipam": addresses}]
    (folder / "10-lab.conflist").write_text(
        json.dumps({"cniVersion": "0.4.0", "name": name, "plugins": plugins})
    )


def program(name: str) -> str:
    """A program of the system; root's PATH need not hold the sbin folders."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise LabError(f"there is no {name} on this machine: `python -m tests.e2e.lab.provision` installs it")
    return found


def cni_plugins() -> str:
    for folder in ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"):
        if Path(folder, "ptp").exists():
            return folder
    raise LabError(
        "there are no CNI plugins on this machine: `python -m tests.e2e.lab.provision` installs them"
    )


def _serving(pki: Pki, name: str, port: int) -> dict[str, object]:
    """What scheduler and controllers need to answer on a port of their own."""
    return {
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "tls-cert-file": pki["serving.crt"],
        "tls-private-key-file": pki["serving.key"],
        "authentication-kubeconfig": pki[f"{name}.kubeconfig"],
        "authorization-kubeconfig": pki[f"{name}.kubeconfig"],
        "v": 2,
    }


def _command(path: str | Path, flags: Mapping[str, object], gates: Gates | None = None) -> list[str]:
    wanted = dict(flags)
    if gates:
        wanted["feature-gates"] = ",".join(f"{name}={json.dumps(on)}" for name, on in gates.items())
    return [str(path), *(f"--{name}={value}" for name, value in wanted.items())]
