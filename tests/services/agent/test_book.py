"""The last line of defence: what is refused, with which sentence, and that a grant is checked once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from accelshare.core.errors import GrantRefused
from accelshare.core.grant import GRANT, Charge, ContainerGrant, Grant, Share, write_grant
from accelshare.core.inventory import Card
from accelshare.core.ledger import Tenant
from accelshare.core.objects import Pod
from accelshare.core.units import GIB
from accelshare.services.agent.book import GrantBook
from tests.builders import a_card, a_pod, bound, cards
from tests.services.agent.world import Keys, a_grant, granted

KEYS = Keys()
CARDS = cards(2)


def a_book(folder: Path, keys: Keys | None = KEYS) -> GrantBook:
    return GrantBook(folder, keys.verify if keys else None)


def admit(book: GrantBook, pod: Pod, of: Sequence[Card] = CARDS) -> Grant:
    return asyncio.run(book.admit(pod, {card.id: card for card in of}))


def refusal(book: GrantBook, pod: Pod, of: Sequence[Card] = CARDS) -> str:
    with pytest.raises(GrantRefused) as refused:
        admit(book, pod, of)
    assert book.get(pod.metadata.uid) is None
    return str(refused.value)


def test_a_signed_grant_is_admitted(tmp_path: Path) -> None:
    """The grant is what the scheduler service wrote."""
    pod = granted("a", 4, keys=KEYS)

    assert admit(a_book(tmp_path), pod) == a_grant(pod, 4)


def test_an_unsigned_grant_is_refused(tmp_path: Path) -> None:
    """The sentence names the pod, and says what to do."""
    text = refusal(a_book(tmp_path), granted("a", 4))

    assert "pod default/a carries a grant that no trusted key has signed" in text
    assert "give this agent the scheduler service's public key" in text


def test_an_unsigned_grant_is_admitted_where_the_operator_said_so(tmp_path: Path) -> None:
    """--unsigned is for trying it out."""
    assert admit(a_book(tmp_path, None), granted("a", 4)).uid == "uid-a"


def test_a_grant_that_a_stranger_signed_is_refused(tmp_path: Path) -> None:
    """A captured node has no private key."""
    assert "no trusted key has signed" in refusal(a_book(tmp_path), granted("a", 4, keys=Keys()))


def test_a_grant_that_was_altered_is_refused(tmp_path: Path) -> None:
    """More memory under the old signature is no grant."""
    pod = granted("a", 4, keys=KEYS)
    text = pod.annotation(GRANT) or ""
    pod.metadata.annotations = {GRANT: text.replace(str(4 * GIB), str(8 * GIB))}

    assert "no trusted key has signed" in refusal(a_book(tmp_path), pod)


def test_a_grant_copied_from_another_pod_is_refused(tmp_path: Path) -> None:
    """It is signed, and not for this UID."""
    pod = granted("thief", 4, keys=KEYS)
    pod.metadata.annotations = {GRANT: granted("a", 4, keys=KEYS).annotation(GRANT) or ""}

    text = refusal(a_book(tmp_path), pod)
    assert "pod default/thief is not served" in text
    assert "uid" in text


def test_a_grant_for_another_node_is_refused(tmp_path: Path) -> None:
    """It is signed for this pod, and not for where it runs."""
    pod = granted("a", 4, keys=KEYS)
    pod.spec.nodeName = "n2"

    assert "node in annotation" in refusal(a_book(tmp_path), pod)


def test_a_grant_that_overfills_a_card_is_refused(tmp_path: Path) -> None:
    """Whoever wrote and signed it: what is served already is counted."""
    book = a_book(tmp_path)
    admit(book, granted("a", 10, keys=KEYS))

    assert "would overfill card 0 (GCU-0)" in refusal(book, granted("b", 7, keys=KEYS))


def test_a_grant_that_fills_a_card_exactly_is_admitted(tmp_path: Path) -> None:
    """The last unit is there to be used."""
    book = a_book(tmp_path)
    admit(book, granted("a", 10, keys=KEYS))

    assert admit(book, granted("b", 6, keys=KEYS)).uid == "uid-b"


def test_room_that_was_forgotten_is_free(tmp_path: Path) -> None:
    """A pod that has ended takes nothing any more."""
    book = a_book(tmp_path)
    admit(book, granted("a", 16, keys=KEYS))
    book.forget("uid-a")

    assert admit(book, granted("b", 16, keys=KEYS)).uid == "uid-b"


def test_two_grants_that_fit_only_alone_are_not_both_admitted(tmp_path: Path) -> None:
    """Two containers that start at the same time do not get past each other's check."""

    async def scenario() -> list[object]:
        book = a_book(tmp_path)
        pods = [granted("a", 10, keys=KEYS), granted("b", 10, keys=KEYS)]
        admitting = [book.admit(pod, {card.id: card for card in CARDS}) for pod in pods]
        return list(await asyncio.gather(*admitting, return_exceptions=True))

    first, second = asyncio.run(scenario())
    assert isinstance(first, Grant)
    assert isinstance(second, GrantRefused)


def test_one_pod_admitted_twice_at_once_is_one_grant(tmp_path: Path) -> None:
    """Two containers of a pod may start at the same time."""

    async def scenario() -> list[Grant]:
        book = a_book(tmp_path)
        pod = granted("a", 10, keys=KEYS)
        return await asyncio.gather(*[book.admit(pod, {"GCU-0": CARDS[0]}) for _ in range(2)])

    first, second = asyncio.run(scenario())
    assert first is second


def test_more_compute_than_a_card_has_is_refused(tmp_path: Path) -> None:
    """Compute counts as memory does."""
    pod = a_pod("a", 1)
    share = Share("GCU-0", 0, GIB, 101)
    grant = structs.replace(a_grant(pod, 1), containers=(ContainerGrant("c0", "app", (share,), 1),))

    assert "101 % of compute" in refusal(a_book(tmp_path), bound(pod, grant, sign=KEYS.sign))


def test_a_card_held_whole_is_not_shared(tmp_path: Path) -> None:
    """Who wants a card for itself is refused one that is in use."""
    book = a_book(tmp_path)
    admit(book, granted("a", 1, keys=KEYS))
    pod = a_pod("b", 1)
    share = Share("GCU-0", 0, GIB, exclusive=True)
    grant = structs.replace(a_grant(pod, 1), containers=(ContainerGrant("c0", "app", (share,), 1),))

    assert "wants it whole" in refusal(book, bound(pod, grant, sign=KEYS.sign))


def test_a_grant_of_a_card_that_is_not_here_is_refused(tmp_path: Path) -> None:
    """The sentence names the card."""
    pod = granted("a", 4, card=a_card(7), keys=KEYS)

    assert "names card GCU-7, which this node does not have" in refusal(a_book(tmp_path), pod)


def test_a_pod_without_a_grant_is_refused(tmp_path: Path) -> None:
    """The sentence says who did not bind it, and what to do."""
    pod = a_pod("a", 4, node="n1")

    text = refusal(a_book(tmp_path), pod)
    assert "was not bound by accelshare's scheduler service" in text
    assert "Delete it, and it will be scheduled anew" in text


def test_an_annotation_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """The sentence names the annotation."""
    pod = a_pod("a", 4, node="n1", annotations={GRANT: "nonsense"})

    assert GRANT in refusal(a_book(tmp_path), pod)


@pytest.mark.parametrize("uid", ["../x", "..", "/etc/x", "a/b", ".hidden", "", "a\0b", "x" * 200])
def test_a_uid_that_is_no_name_of_a_file_is_refused(tmp_path: Path, uid: str) -> None:
    """No file outside of the folder is ever written, whoever signed it."""
    pod = bound(structs.replace(a_pod("a", 4)), a_grant(a_pod("a", 4)))
    pod.metadata.uid = uid
    grant = structs.replace(a_grant(a_pod("a", 4), 4), uid=uid)
    pod.metadata.annotations = {GRANT: write_grant(grant, KEYS.sign)}
    folder = tmp_path / "grants"

    assert "no UID" in refusal(a_book(folder), pod)
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_grant_is_checked_once(tmp_path: Path) -> None:
    """Later edits of the annotation change nothing for a pod that is served."""
    book = a_book(tmp_path)
    pod = granted("a", 4, keys=KEYS)
    admit(book, pod)
    pod.metadata.annotations = {GRANT: "nonsense"}

    assert admit(book, pod) == a_grant(pod, 4)


def test_a_served_pod_outlives_a_change_of_keys(tmp_path: Path) -> None:
    """After a restart under another key the file counts, not the signature."""
    pod = granted("a", 4, keys=KEYS)
    admit(a_book(tmp_path), pod)

    assert admit(a_book(tmp_path, Keys()), pod) == a_grant(pod, 4)


def test_a_served_pod_outlives_its_card(tmp_path: Path) -> None:
    """What was served stays written down, also when the card is not seen at the moment."""
    book = a_book(tmp_path)
    pod = granted("a", 4, keys=KEYS)
    admit(book, pod)

    assert admit(book, pod, of=()) == a_grant(pod, 4)


def test_a_restart_remembers_what_fills_the_cards(tmp_path: Path) -> None:
    """An overfilling grant is refused by the next agent as well."""
    admit(a_book(tmp_path), granted("a", 10, keys=KEYS))

    assert "would overfill" in refusal(a_book(tmp_path), granted("b", 7, keys=KEYS))


def test_what_is_forgotten_is_gone_from_the_disk(tmp_path: Path) -> None:
    """The next agent does not find it."""
    book = a_book(tmp_path)
    admit(book, granted("a", 4, keys=KEYS))
    book.forget("uid-a")

    assert a_book(tmp_path).pods() == []


def test_forgetting_what_is_not_known_touches_no_file(tmp_path: Path) -> None:
    """A path that somebody made up is not removed."""
    other = tmp_path / "other"
    other.write_bytes(b"x")
    a_book(tmp_path / "grants").forget("../other")

    assert other.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"dialect":"d","uid":"z","node":"n","containers":[]}']
)
def test_a_broken_file_does_not_hide_the_others(tmp_path: Path, content: bytes) -> None:
    """It is passed over; so is one whose name is not the pod's of which it speaks."""
    admit(a_book(tmp_path), granted("a", 4, keys=KEYS))
    (tmp_path / "broken").write_bytes(content)

    assert a_book(tmp_path).pods() == ["uid-a"]


def test_checking_alone_writes_nothing(tmp_path: Path) -> None:
    """A question leaves no trace."""
    book = a_book(tmp_path)
    book.check(granted("a", 4, keys=KEYS))

    assert book.pods() == []
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_file_is_no_grant_and_goes_when_it_is_old(tmp_path: Path) -> None:
    """What a crash left is not read, and not kept."""
    unfinished = tmp_path / ".uid-a.00000000.tmp"
    unfinished.write_bytes(b"{")
    book = a_book(tmp_path)

    assert book.pods() == []
    book.tidy(unfinished.stat().st_mtime + 1)
    assert not unfinished.exists()


def a_tenant(name: str, gib: int) -> Tenant:
    """A pod that another system bound, as the ledger reads it."""
    return Tenant(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        node="n1",
        charges=(Charge("GCU-0", 0, gib * GIB),),
        foreign=a_pod(name, gib, node="n1"),
    )


def test_what_another_system_has_given_away_is_counted(tmp_path: Path) -> None:
    """Nothing of ours is put on a card that its pods hold."""
    book = a_book(tmp_path)
    pod = granted("a", 4, keys=KEYS)

    with pytest.raises(GrantRefused, match="would overfill card 0"):
        asyncio.run(book.admit(pod, {"GCU-0": CARDS[0]}, [a_tenant("theirs", 13)]))
    assert asyncio.run(book.admit(pod, {"GCU-0": CARDS[0]}, [a_tenant("theirs", 12)])) == a_grant(pod, 4)


def test_a_tenant_of_ours_is_not_counted_twice(tmp_path: Path) -> None:
    """What was served counts, whatever has become of the pod's annotations; so does the pod's own grant."""
    book = a_book(tmp_path)
    admit(book, granted("a", 10, keys=KEYS))
    pod = granted("b", 6, keys=KEYS)
    tenants = [a_tenant("a", 10), a_tenant("b", 6)]

    assert asyncio.run(book.admit(pod, {"GCU-0": CARDS[0]}, tenants)).uid == "uid-b"


def test_a_grant_of_ours_that_was_not_served_holds_nothing(tmp_path: Path) -> None:
    """It may be forged: what is checked decides, in the order in which pods start."""
    waiting = structs.replace(a_tenant("b", 16), foreign=None)
    pod = granted("a", 10, keys=KEYS)

    assert asyncio.run(a_book(tmp_path).admit(pod, {"GCU-0": CARDS[0]}, [waiting])).uid == "uid-a"
