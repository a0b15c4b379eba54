"""`accelshare agent`: runs on every node with cards, as root."""

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

from accelshare.cli import connection
from accelshare.core.errors import BadInput


def arguments(parser: argparse.ArgumentParser) -> None:
    connection.arguments(parser)
    add = parser.add_argument
    add("--node", metavar="NAME", default=os.environ.get("NODE_NAME"), help="this node (default: $NODE_NAME)")
    add("--driver", required=True, help="whose cards: enflame; simulated, for trying it out")
    add(
        "--driver-config", type=Path, metavar="FILE", help="what the driver needs: cards of the simulated one"
    )
    add(
        "--unit",
        action="append",
        default=[],
        metavar="DIALECT=UNIT",
        help="gcushare=1GB (default), 0.1GB, 0.01GB or 0.001GB",
    )
    add(
        "--counted",
        action="append",
        default=[],
        metavar="DIALECT",
        help="count this dialect's units instead of listing one device id for each; the same on all nodes "
        "and in the scheduler service",
    )
    add(
        "--injection",
        choices=("auto", "cdi", "direct"),
        default="auto",
        help="how grants get into containers (default: what the container runtime says it can)",
    )
    add(
        "--cdi-dir",
        type=Path,
        metavar="DIR",
        help="where CDI files are written (default: what the runtime reads)",
    )
    add("--runtime-socket", type=Path, default=Path("/run/containerd/containerd.sock"), metavar="FILE")
    add("--plugin-dir", type=Path, default=Path("/var/lib/kubelet/device-plugins"), metavar="DIR")
    add("--state-dir", type=Path, default=Path("/var/lib/accelshare"), metavar="DIR")
    add(
        "--trusted-key",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="public key (PEM) of the scheduler service; may be given several times while keys change",
    )
    add("--unsigned", action="store_true", help="serve grants that nobody signed: for trying it out only")
    add("--poll", type=float, default=5.0, metavar="SECONDS", help="how often the cards are looked at")
    add(
        "--sweep",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how often old CDI files are removed; 0: never",
    )
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def run(args: argparse.Namespace) -> int:
    from accelshare.cli.logs import to_stderr
    from accelshare.services.agent.settings import AgentSettings, front_ends

    to_stderr(args.log_level)
    if not args.poll > 0 or not args.sweep >= 0:
        raise BadInput("--poll and --sweep", (args.poll, args.sweep), "seconds above 0, and from 0 on")
    if not args.node:
        raise BadInput("--node", args.node or "", "the name of this node, or $NODE_NAME set to it")
    if not args.trusted_key and not args.unsigned:
        allowed = "the scheduler service's public key; or --unsigned, to serve grants that nobody signed"
        raise BadInput("--trusted-key", "", allowed)
    settings = AgentSettings(
        node=args.node,
        driver=args.driver,
        driver_config=args.driver_config,
        dialects=front_ends(_pairs(args.unit), frozenset(args.counted)),
        injection=None if args.injection == "auto" else args.injection,
        cdi_folder=args.cdi_dir,
        runtime_socket=args.runtime_socket,
        plugin_folder=args.plugin_dir,
        state_folder=args.state_dir,
        trusted_keys=tuple(args.trusted_key),
        unsigned=args.unsigned,
        poll_seconds=args.poll,
        sweep_seconds=args.sweep,
    )
    config = connection.service_config(args)

    async def serve() -> None:
        from accelshare.drivers import open_driver
        from accelshare.kube.api.client import Client
        from accelshare.services.agent.service import Agent

        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        driver = open_driver(settings.driver, settings.driver_config)
        try:
            async with Client(config, "agent") as client:
                await Agent(settings, client, driver).run(stop)
        finally:
            driver.close()
        logging.getLogger("accelshare").info("stopped")

    asyncio.run(serve())
    return 0


def _pairs(words: list[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadInput("--unit", word, "DIALECT=UNIT, such as gcushare=0.1GB")
        pairs[name] = value
    return pairs
