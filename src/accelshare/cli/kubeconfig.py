"""A kubeconfig file as our own configuration.

The official client reads it, with all that such a file may hold: several files merged, credentials from a
program, tokens that run out. It takes half a second to import, so it is imported only when it is called, and
nothing but its reader is used.
"""

import os
from typing import Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from accelshare.core.errors import AccelshareError
from accelshare.kube.api.config import ApiConfig

DEFAULT = "~/.kube/config"

# Versions of the official client differ in the name under which they keep the token.
_TOKEN_KEYS = ("BearerToken", "authorization")


def from_kubeconfig(path: str | None = None, context: str | None = None) -> ApiConfig:
    """Without a path: $KUBECONFIG, which may name several files, else ~/.kube/config."""
    from kubernetes.client import Configuration
    from kubernetes.config import kube_config

    reader: Any = kube_config  # it has no types
    files = path or os.environ.get("KUBECONFIG") or DEFAULT
    if not any(os.path.exists(os.path.expanduser(file)) for file in files.split(os.pathsep) if file):
        raise AccelshareError(f"there is no kubeconfig at {files}; name one, or set KUBECONFIG")
    found = Configuration()
    try:
        merged = reader.KubeConfigMerger(files)
        # A refreshed token is written back, as kubectl does: some providers take each one only once.
        loader = reader.KubeConfigLoader(
            merged.config, context, config_base_path=None, config_persister=merged.save_changes
        )
        loader.load_and_set(found)
        wants_program = _names_program(merged.config, loader.current_context)
    # What a malformed file leads to is anything: KeyError, TypeError, errors of YAML and of base64.
    except Exception as failure:
        raise AccelshareError(f"the kubeconfig {files} cannot be used: {failure}") from failure
    if wants_program and not (_token(found) or found.cert_file):
        raise AccelshareError(f"the program that {files} names gave no credentials; its error stands above")
    return _translated(found, files)


def _names_program(config: Any, context: Any) -> bool:
    """The official client only logs that such a program failed, and would go on as nobody."""
    name = context["context"].get("user")
    user = config["users"].get_with_name(name, safe=True) if name else None
    return user is not None and "exec" in user["user"]


def _token(found: Any) -> str:
    """The whole Authorization value; runs the program, or the refresh, again where it has run out."""
    if found.refresh_api_key_hook is not None:
        found.refresh_api_key_hook(found)
    return next((str(found.api_key[key]) for key in _TOKEN_KEYS if found.api_key.get(key)), "")


def _translated(found: Any, files: str) -> ApiConfig:
    def source() -> str:
        try:
            return _token(found)
        # A refresh talks to whatever issues the tokens, and fails in that one's own ways.
        except Exception as failure:
            raise AccelshareError(f"the token of {files} cannot be refreshed: {failure}") from failure

    return ApiConfig(
        server=found.host,
        ca_file=found.ssl_ca_cert,
        client_cert_file=found.cert_file,
        client_key_file=found.key_file,
        token_source=source if _token(found) else None,
        tls_server_name=found.tls_server_name,
        insecure=not found.verify_ssl,
        proxy=_proxy(found),
    )


def _proxy(found: Any) -> str | None:
    host = urlsplit(found.host).hostname or ""
    return None if proxy_bypass(host) else found.proxy
