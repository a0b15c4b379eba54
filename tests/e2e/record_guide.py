"""Plays the guide's story on a real cluster and keeps what its components said, as test data.

    python -m tests.e2e.record_guide        writes tests/recordings/

Kept are kube-scheduler's calls with our answers, and kubelet's checkpoint while the pods run. Nothing in
them is edited but host names and tokens, of which there are none.
"""

import json
import sys
from pathlib import Path

from .lab.cluster import Cluster
from .lab.config import scheduler_config
from .lab.provision import ensure
from .lab.record import ExtenderRecorder
from .lab.versions import KUBERNETES
from .services import LABEL, Services, gcu_pod

FOLDER = Path(__file__).parents[1] / "recordings"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    calls = FOLDER / f"kube-scheduler-{KUBERNETES}.jsonl"
    calls.unlink(missing_ok=True)
    with Cluster(ensure()) as cluster:
        services = Services(cluster)
        services.start_scheduler()
        services.start_agent()
        with ExtenderRecorder(services.http, calls) as recorder:
            cluster.restart_scheduler(scheduler_config(services.extender(urlPrefix=recorder.url)))
            cluster.kubectl("label", "node", cluster.node, LABEL)
            services.wait_offered()
            with cluster.namespace("guide") as namespace:
                for number, units in enumerate((4, 8, 12), start=1):
                    services.create(namespace, gcu_pod(f"gcushare-pod-{number}", units))
                    services.running(namespace, f"gcushare-pod-{number}")
                services.create(namespace, gcu_pod("gcushare-pod-4", 20))
                services.refused(namespace, "gcushare-pod-4")
                checkpoint = cluster.kubelet_dir / "device-plugins" / "kubelet_internal_checkpoint"
                kept = FOLDER / f"kubelet-checkpoint-{KUBERNETES}.json"
                kept.write_bytes(checkpoint.read_bytes())
                pods = cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
                (FOLDER / f"pods-{KUBERNETES}.json").write_text(json.dumps(pods, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
