"""Flags that every verb has which talks to the API server."""

import argparse
import os
from pathlib import Path

from accelshare.kube.api.config import SERVICE_ACCOUNT, ApiConfig, in_cluster


def arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the API server")
    group.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
    group.add_argument("--context", metavar="NAME", help="a context of the kubeconfig")
    group.add_argument(
        "--credentials",
        type=Path,
        default=SERVICE_ACCOUNT,
        metavar="DIR",
        help="token and ca.crt of a service in the cluster, which has no kubeconfig (default: %(default)s)",
    )


def service_config(args: argparse.Namespace) -> ApiConfig:
    """A service in a cluster uses its service account's files, unless it is given a kubeconfig."""
    if args.kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(args.credentials)
    return user_config(args)


def user_config(args: argparse.Namespace) -> ApiConfig:
    from accelshare.cli.kubeconfig import from_kubeconfig

    return from_kubeconfig(args.kubeconfig, args.context)
