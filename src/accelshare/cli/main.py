"""The command line: one file a verb. Only the verb that was called is imported, so that `--help` is quick.

Exit codes: 0 done; 1 it could not be done, and the last line says why and what to do; 2 the call was wrong.
"""

import argparse
import sys
from importlib import import_module

import accelshare
from accelshare.core.errors import AccelshareError, BadInput

VERBS = {
    "scheduler": "the scheduler service, beside kube-scheduler as its extender",
    "agent": "the node agent: cards to kubelet, grants into containers",
    "inspect": "who has what of which card, from the cluster itself",
}


def run() -> None:
    sys.exit(main(sys.argv[1:]))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="accelshare", description="Many pods share few accelerator cards.")
    parser.add_argument("--version", action="version", version=f"accelshare {accelshare.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    called = next((word for word in words if not word.startswith("-")), None)
    for verb, summary in VERBS.items():
        sub = verbs.add_parser(verb, help=summary, description=summary)
        if verb == called:
            import_module(f"accelshare.cli.{verb}").arguments(sub)
    args = parser.parse_args(words)
    try:
        return int(import_module(f"accelshare.cli.{args.verb}").run(args))
    except BadInput as error:
        print(f"accelshare {args.verb}: {error}", file=sys.stderr)
        return 2
    except AccelshareError as error:
        print(f"accelshare {args.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has had enough.
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"accelshare {args.verb}: {error}", file=sys.stderr)
        return 1
