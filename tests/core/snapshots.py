"""A ledger as plain values, so that two ledgers can be compared whatever way they came about."""

from collections.abc import Iterable

from accelshare.core.ledger import Ledger


def snapshot(ledger: Ledger) -> object:
    """Everything that an answer can depend on; not what only serves to skip work (hashes, versions)."""
    nodes = {
        name: (
            state.known,
            state.inventory,
            state.problem,
            dict(state.offers),
            state.cards,
            state.free,
            state.compute,
            state.tenants_of,
            state.exclusive,
            state.best_free,
            state.rank,
            sorted(tenant.uid for tenant in state.tenants.values()),
        )
        for name, state in ledger.nodes.items()
    }
    tenants = sorted(
        (
            tenant.uid,
            tenant.held,
            tenant.beside > 0,
            tenant.namespace,
            tenant.name,
            tenant.node,
            tenant.charges,
            tenant.dialect,
            tenant.unit,
            tenant.created,
            tenant.foreign is not None,
            tenant.problem,
        )
        for tenant in ledger.tenants.values()
    )
    return nodes, tenants, {dialect: ledger.majority_unit(dialect) for dialect in ("gcushare",)}


def differences(one: object, other: object, path: str = "") -> Iterable[str]:
    """Where two snapshots differ, for whoever has to read a failure."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            yield from differences(one.get(key), other.get(key), f"{path}/{key}")
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{path}/{at}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) != len(other):
        yield f"{path}: {[each for each in (*one, *other) if (each in one) != (each in other)]}"
    elif one != other:
        yield f"{path}: {one!r} is not {other!r}"
