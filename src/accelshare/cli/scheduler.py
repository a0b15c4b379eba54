"""`accelshare scheduler`: the service that kube-scheduler asks as its extender."""

import argparse
import asyncio
from pathlib import Path

from accelshare.cli import connection
from accelshare.core.errors import BadInput


def arguments(parser: argparse.ArgumentParser) -> None:
    connection.arguments(parser)
    add = parser.add_argument
    add(
        "--http",
        default="0.0.0.0:32766",
        metavar="HOST:PORT",
        help="plain HTTP: inspection for everybody, verbs that act for loopback only (default: %(default)s)",
    )
    add("--tls-port", type=int, default=32767, metavar="PORT", help="HTTPS: answers everything")
    add("--tls-cert", default="", metavar="FILE", help="PEM; without it nobody listens on the TLS port")
    add("--tls-key", default="", metavar="FILE")
    add("--signing-key", type=Path, metavar="FILE", help="Ed25519 private key (PEM) that signs grants")
    add("--unsigned", action="store_true", help="sign nothing: for trying it out only")
    add(
        "--best",
        type=int,
        default=32,
        metavar="N",
        help="hand on the best N nodes that fit, 16 to 64; 0: all of them (default: %(default)s)",
    )
    add(
        "--counted",
        action="append",
        default=[],
        metavar="DIALECT",
        help="this dialect's units are counted on all nodes: give its containers their slot at admission",
    )
    add("--no-election", action="store_true", help="lead without a Lease: where there is one replica only")
    add("--lease-namespace", default="accelshare", metavar="NAME")
    add("--lease-name", default="accelshare-scheduler", metavar="NAME")
    add("--identity", default="", metavar="NAME", help="who this replica is in the Lease (default: the host)")
    add("--pod-name", default="", metavar="NAME", help="this pod: it carries the leader label while it leads")
    add("--pod-namespace", default="", metavar="NAME")
    add("--app-label", default="app.kubernetes.io/name=accelshare-scheduler", metavar="KEY=VALUE")
    add(
        "--service-account",
        default="system:serviceaccount:accelshare:accelshare-scheduler",
        metavar="USER",
        help="who may write grants: the webhook refuses them from anybody else (default: %(default)s)",
    )
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def run(args: argparse.Namespace) -> int:
    from accelshare.cli.logs import to_stderr
    from accelshare.kube.api.client import Client
    from accelshare.services.keys import signer
    from accelshare.services.scheduler.service import COMPONENT, serve
    from accelshare.services.scheduler.settings import Settings

    to_stderr(args.log_level)
    if args.signing_key is None and not args.unsigned:
        allowed = (
            "the file of the Ed25519 private key that signs grants; or --unsigned, which agents then need too"
        )
        raise BadInput("--signing-key", "", allowed)
    if args.signing_key is not None and args.unsigned:
        raise BadInput("--unsigned", True, "one of --signing-key and --unsigned")
    host, port = _address(args.http)
    settings = Settings(
        host=host,
        port=port,
        tls_port=args.tls_port,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        best=args.best,
        elect=not args.no_election,
        lease_namespace=args.lease_namespace,
        lease_name=args.lease_name,
        identity=args.identity,
        pod_name=args.pod_name,
        pod_namespace=args.pod_namespace,
        app_label=args.app_label,
        counted=frozenset(args.counted),
        service_account=args.service_account,
    )
    sign = signer(args.signing_key) if args.signing_key is not None else None
    config = connection.service_config(args)

    async def work() -> None:
        async with Client(config, COMPONENT) as client:
            await serve(settings, client, sign)

    asyncio.run(work())
    return 0


def _address(word: str) -> tuple[str, int]:
    host, colon, port = word.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise BadInput("--http", word, "HOST:PORT, such as 0.0.0.0:32766")
    return host.strip("[]"), int(port)
