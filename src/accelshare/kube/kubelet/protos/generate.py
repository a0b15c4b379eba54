"""Makes the Python messages of every .proto file here again: `python -m accelshare.kube.kubelet.protos.generate`.

Needs grpcio-tools, which only the development environment has. The same compiler gives the same bytes, so a
test can tell that a .proto file was changed without this having been run.
"""

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = Path("accelshare/kube/kubelet/protos")  # in every file's name, so that it is unique in protobuf's pool
ROOT = HERE.parents[len(PACKAGE.parts) - 1]

# The compiler's output is not annotated throughout; its types are used, its own body is not checked.
HEADER = "# mypy: ignore-errors\n"


def generate(target: Path) -> list[Path]:
    """Writes the generated files under `target`, the folder that holds the package, and names them."""
    sources = sorted(HERE.glob("*.proto"))
    services = [source for source in sources if "\nservice " in source.read_text()]
    _compile(sources, f"--python_out={target}", f"--pyi_out={target}")
    _compile(services, f"--grpc_python_out={target}")
    made = [source.stem + ending for source in sources for ending in ("_pb2.py", "_pb2.pyi")]
    made += [source.stem + "_pb2_grpc.py" for source in services]
    return [_finish(target / PACKAGE / name) for name in sorted(made)]


def _compile(sources: list[Path], *outputs: str) -> None:
    protoc = import_module("grpc_tools.protoc")
    arguments = ["protoc", f"-I{ROOT}", *outputs, *map(str, sources)]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its own message is above")


def _finish(path: Path) -> Path:
    path.write_text(HEADER + path.read_text())
    return path


def main() -> None:
    for path in generate(ROOT):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
