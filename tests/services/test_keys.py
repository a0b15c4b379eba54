"""Signatures of grants: who signs, who is believed, and what is said of a file that holds no such key."""

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from accelshare.core.errors import BadInput
from accelshare.services.keys import signer, verifier

PAYLOAD = b'{"uid":"u1"}'


def private_pem(
    folder: Path, name: str = "grant.key", how: KeySerializationEncryption | None = None
) -> tuple[Path, Path]:
    """The paths of a private key and of its public half."""
    key = Ed25519PrivateKey.generate()
    secret, public = folder / name, folder / f"{name}.pub"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how or NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return secret, public


def test_what_was_signed_is_believed(tmp_path: Path) -> None:
    """The public key accepts what its private key signed."""
    secret, public = private_pem(tmp_path)

    assert verifier([public])(PAYLOAD, signer(secret)(PAYLOAD))


def test_another_text_is_not_believed(tmp_path: Path) -> None:
    """A signature is for one text, byte for byte."""
    secret, public = private_pem(tmp_path)

    assert not verifier([public])(PAYLOAD + b" ", signer(secret)(PAYLOAD))


def test_another_key_is_not_believed(tmp_path: Path) -> None:
    """What a stranger signed is refused."""
    secret, _ = private_pem(tmp_path, "stranger.key")
    _, public = private_pem(tmp_path)

    assert not verifier([public])(PAYLOAD, signer(secret)(PAYLOAD))


def test_several_keys_are_believed_while_keys_change(tmp_path: Path) -> None:
    """Old and new signatures both pass where both keys are trusted."""
    old, old_public = private_pem(tmp_path, "old.key")
    new, new_public = private_pem(tmp_path, "new.key")
    verify = verifier([old_public, new_public])

    assert verify(PAYLOAD, signer(old)(PAYLOAD))
    assert verify(PAYLOAD, signer(new)(PAYLOAD))


def test_without_keys_nobody_is_believed(tmp_path: Path) -> None:
    """No trusted key means that no signature is trusted, never that all are."""
    secret, _ = private_pem(tmp_path)

    assert not verifier([])(PAYLOAD, signer(secret)(PAYLOAD))


@pytest.mark.parametrize("signature", ["", "%", "AAAA", "é", "A" * 88, base64.b64encode(b"x" * 64).decode()])
def test_a_broken_signature_is_not_believed(tmp_path: Path, signature: str) -> None:
    """Whatever stands in place of a signature, the answer is no and never an error."""
    _, public = private_pem(tmp_path)

    assert not verifier([public])(PAYLOAD, signature)


def test_a_missing_private_key_names_the_flag(tmp_path: Path) -> None:
    """Who starts the service reads which flag to mend, and how such a key is made."""
    with pytest.raises(BadInput, match=r"--signing-key.*openssl genpkey"):
        signer(tmp_path / "nowhere.key")


def test_a_missing_public_key_names_the_flag(tmp_path: Path) -> None:
    """Who starts the agent reads which flag to mend, and how such a key is made."""
    with pytest.raises(BadInput, match=r"--trusted-key.*openssl pkey"):
        verifier([tmp_path / "nowhere.pub"])


def test_a_private_key_with_a_password_is_refused(tmp_path: Path) -> None:
    """A service cannot be asked for a password."""
    secret, _ = private_pem(tmp_path, how=BestAvailableEncryption(b"secret"))

    with pytest.raises(BadInput, match="--signing-key"):
        signer(secret)


def test_a_private_key_is_no_public_key(tmp_path: Path) -> None:
    """An agent that is given the private key by mistake does not start."""
    secret, _ = private_pem(tmp_path)

    with pytest.raises(BadInput, match="--trusted-key"):
        verifier([secret])


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    """An RSA key is a key, and not the one that is wanted."""
    key = generate_private_key(65537, 2048)
    secret, public = tmp_path / "rsa.key", tmp_path / "rsa.pub"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    with pytest.raises(BadInput, match="of another kind"):
        signer(secret)
    with pytest.raises(BadInput, match="of another kind"):
        verifier([public])
