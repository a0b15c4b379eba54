"""The command line: what it says, and the exit codes that scripts can use."""

import subprocess
import sys
from pathlib import Path

import pytest

from accelshare.cli.inspect import table
from accelshare.cli.main import main
from accelshare.core.inspection import inspect
from accelshare.core.ledger import Ledger
from accelshare.dialects import Dialects
from tests.builders import a_node, a_pod


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(list(words))
    return code, capsys.readouterr().err


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """One line each."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in ("scheduler", "agent", "inspect"))


def test_help_imports_no_service() -> None:
    """The command answers at once: what a verb needs is imported when it is called."""
    code = (
        "import sys; from accelshare.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    )
    check = "print(sorted({'aiohttp', 'grpc', 'msgspec', 'uvicorn', 'kubernetes'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_verb_is_a_wrong_call() -> None:
    """Exit code 2, as for every wrong call."""
    with pytest.raises(SystemExit) as ended:
        main(["conquer"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("agent", "--driver", "simulated"), 2, "--node"),
        (("agent", "--driver", "simulated", "--node", "n"), 2, "--trusted-key"),
        (
            ("agent", "--driver", "simulated", "--node", "n", "--unsigned", "--unit", "gcushare"),
            2,
            "DIALECT=UNIT",
        ),
        (("agent", "--driver", "x", "--node", "n", "--unsigned", "--unit", "gcushare=3GB"), 2, "0.001GB"),
        (("agent", "--driver", "x", "--node", "n", "--unsigned", "--counted", "hamster"), 2, "gcushare"),
        (("scheduler",), 2, "--signing-key"),
        (("scheduler", "--unsigned", "--http", "here"), 2, "HOST:PORT"),
        (("scheduler", "--unsigned", "--best", "3"), 2, "16 to 64"),
        (("scheduler", "--signing-key", "/nowhere/key"), 2, "PEM file with an Ed25519 private key"),
        (("inspect", "--kubeconfig", "/nowhere/config"), 1, "/nowhere/config"),
    ],
)
def test_every_mistake_is_a_sentence_and_an_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    sentence: str,
) -> None:
    """It names what was given and what is allowed, in one line and without a stack trace."""
    monkeypatch.delenv("NODE_NAME", raising=False)
    ended, text = said(capsys, *words)
    assert (ended, len(text.splitlines())) == (code, 1)
    assert text.startswith(f"accelshare {words[0]}: ")
    assert sentence in text


def test_a_driver_that_is_not_there_names_those_that_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before anything is asked of a cluster."""
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    words = ("agent", "--driver", "nvidea", "--node", "n", "--unsigned", "--kubeconfig", str(config))
    code, text = said(capsys, *words, "--state-dir", str(tmp_path))
    assert code == 2
    assert "one of enflame, simulated" in text


@pytest.mark.parametrize(
    ("given", "of", "code", "sentence"),
    [
        ("--state-dir", "file", 1, "needs a folder of the host that it can write"),
        ("--state-dir", "file/below", 1, "needs a folder of the host that it can write"),
        ("--driver-config", "nowhere", 2, "a file that can be read"),
    ],
)
def test_an_agent_without_its_files_says_which(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str, of: str, code: int, sentence: str
) -> None:
    """In a line that names the path, and without a stack trace."""
    config, cards = tmp_path / "file", tmp_path / "cards"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    cards.write_text("cards: [{serial: S1, memory: 16GiB}]\n")
    paths = {"--state-dir": tmp_path / "state", "--driver-config": cards, given: tmp_path / of}
    words = [str(word) for pair in paths.items() for word in pair]
    ended, text = said(
        capsys,
        "agent",
        "--driver",
        "simulated",
        "--node",
        "n",
        "--unsigned",
        "--kubeconfig",
        str(config),
        *words,
    )
    assert (ended, len(text.splitlines())) == (code, 1)
    assert str(tmp_path / of) in text
    assert sentence in text


def test_a_certificate_that_is_not_there_ends_the_scheduler_with_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before anybody is served."""
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    words = ("scheduler", "--unsigned", "--http", "127.0.0.1:0", "--kubeconfig", str(config))
    code, text = said(capsys, *words, "--tls-cert", "/nowhere/cert", "--tls-key", "/nowhere/key")
    assert code == 2
    assert text.splitlines()[-1].startswith("accelshare scheduler: tls_cert is '/nowhere/cert'")
    assert "Traceback" not in text


def test_the_table_shows_cards_pods_and_what_is_wrong() -> None:
    """A row a card, in columns; problems stand below it."""
    ledger = Ledger(Dialects())
    ledger.set_node(a_node("n1"))
    ledger.set_pod(a_pod("lost", 4, node="n1"))
    shown = table(inspect(ledger, ["n1"]))
    assert shown[0].split() == ["NODE", "CARD", "MODEL", "USED", "FREE", "TOTAL", "HEALTH", "PODS"]
    assert shown[1].startswith("n1")
    assert shown[-1].endswith("lost: bound without a grant")


def test_a_cluster_without_cards_is_told_so() -> None:
    """In place of an empty table."""
    assert "does the node agent run" in table(inspect(Ledger(Dialects()), []))[0]
