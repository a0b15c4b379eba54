"""`accelshare inspect [NODE]`: who has what of which card.

It folds the cluster's Nodes and Pods itself, so it needs no service of ours and works while all are down.
"""

import argparse
import asyncio
from collections.abc import Sequence

import msgspec

from accelshare.cli import connection
from accelshare.core.errors import AccelshareError
from accelshare.core.inspection import InspectedCard, InspectedNode, Inspection, inspect, with_cards
from accelshare.core.ledger import Ledger
from accelshare.core.objects import Node, Pod
from accelshare.core.units import GIB
from accelshare.dialects import Dialects


def arguments(parser: argparse.ArgumentParser) -> None:
    connection.arguments(parser)
    parser.add_argument("node", nargs="?", metavar="NODE", help="this node only")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def run(args: argparse.Namespace) -> int:
    ledger = asyncio.run(_fold(args))
    if args.node is not None and args.node not in ledger.nodes:
        raise AccelshareError(f"there is no node {args.node}; without a name, all nodes with cards are shown")
    found = inspect(ledger, [args.node] if args.node is not None else with_cards(ledger))
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print("\n".join(table(found)))
    return 0


async def _fold(args: argparse.Namespace) -> Ledger:
    from accelshare.kube.api.client import Client

    config = connection.user_config(args)
    ledger = Ledger(Dialects())
    async with Client(config, "inspect") as client:
        async for nodes in client.list_pages("/api/v1/nodes", Node):
            for node in nodes.items:
                ledger.set_node(node)
        async for pods in client.list_pages("/api/v1/pods", Pod):
            for pod in pods.items:
                ledger.set_pod(pod)
    return ledger


# A table as kubectl's: columns as wide as they must be, three spaces between them.

_HEAD = ("NODE", "CARD", "MODEL", "USED", "FREE", "TOTAL", "HEALTH", "PODS")


def table(found: Inspection) -> list[str]:
    rows: list[Sequence[str]] = [_HEAD]
    notes: list[str] = []
    for node in found.nodes:
        rows.extend(_row(node, card) for card in node.cards)
        notes.extend(_notes(node))
    if len(rows) == 1 and not notes:
        return ["no node reports cards: does the node agent run?"]
    return [*_aligned(rows), *(["", *notes] if notes else [])]


def _row(node: InspectedNode, card: InspectedCard) -> tuple[str, ...]:
    pods = ", ".join(
        f"{pod.namespace}/{pod.name} {_gib(pod.memory)}{' (held)' if pod.held else ''}" for pod in card.pods
    )
    return (
        node.name,
        str(card.index),
        card.model or "-",
        _gib(card.used),
        _gib(card.free),
        _gib(card.memory),
        "ok" if card.healthy else card.reason or "sick",
        pods or "-",
    )


def _notes(node: InspectedNode) -> list[str]:
    notes = [f"{node.name}: {node.problem}"] if node.problem else []
    if node.leaving:
        notes.append(f"{node.name}: its agent has left or is leaving; no new pods")
    closed = [name for name, end in node.dialects.items() if not end.offered and not node.problem]
    notes.extend(f"{node.name}: takes no new pods of {name}" for name in closed if not node.leaving)
    notes.extend(f"{node.name}: pod {pod.namespace}/{pod.name}: {pod.problem}" for pod in node.problems)
    return notes


def _gib(size: int) -> str:
    return f"{size / GIB:.3f}".rstrip("0").rstrip(".") + " GiB"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
