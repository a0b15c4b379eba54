"""Signatures of grants: the scheduler service holds the private key, every agent the public ones.

Ed25519 over the grant's text, which holds the pod's UID and the node. A node that was taken over has public
keys only, so it can forge nothing for another. Several public keys may be trusted at once, so that keys can
be changed without a moment in which new grants are refused.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from accelshare.core.errors import BadInput
from accelshare.core.grant import Sign

Verify = Callable[[bytes, str], bool]

_HOW = "openssl genpkey -algorithm ed25519 -out grant.key; openssl pkey -in grant.key -pubout -out grant.pub"


def signer(path: Path) -> Sign:
    """Signs with the Ed25519 private key in a PEM file."""
    allowed = f"the path of a PEM file with an Ed25519 private key ({_HOW})"
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput("--signing-key", str(path), f"{allowed}; reading it failed: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput("--signing-key", str(path), f"{allowed}; this key is of another kind")
    private = key
    return lambda payload: base64.b64encode(private.sign(payload)).decode()


def verifier(paths: Sequence[Path]) -> Verify:
    """Accepts what any of these Ed25519 public keys has signed."""
    keys = [_public(path) for path in paths]

    def verify(payload: bytes, signature: str) -> bool:
        try:
            raw = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return False
        return any(_signed_by(key, payload, raw) for key in keys)

    return verify


def _public(path: Path) -> Ed25519PublicKey:
    allowed = f"the path of a PEM file with an Ed25519 public key ({_HOW})"
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadInput("--trusted-key", str(path), f"{allowed}; reading it failed: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput("--trusted-key", str(path), f"{allowed}; this key is of another kind")
    return key


def _signed_by(key: Ed25519PublicKey, payload: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, payload)
    except InvalidSignature:
        return False
    return True
