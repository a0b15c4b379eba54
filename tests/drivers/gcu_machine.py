"""A machine with GCU cards, as a folder: sysfs, device nodes and a libefml that is compiled on the spot."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from accelshare.drivers.enflame import EnflameDriver

SOURCE = Path(__file__).with_name("fake_efml.c")
REAL = "usr/local/efsmi/efsmi-1.4.0/lib/libefml.so.1.0.0"

# The eight-card machine of the whole-card guide: place of the card, bridges from the card upwards.
GUIDE = (
    ("11:00.0", "10:00.0 0f:00.0 0e:00.0 0d:00.0 0c:02.0"),
    ("12:00.0", "10:10.0 0f:00.0 0e:00.0 0d:00.0 0c:02.0"),
    ("15:00.0", "14:00.0 13:00.0 0e:04.0 0d:00.0 0c:02.0"),
    ("19:00.0", "17:10.0 16:00.0 0e:08.0 0d:00.0 0c:02.0"),
    ("9c:00.0", "9b:00.0 9a:00.0 99:00.0 98:00.0 97:02.0"),
    ("9d:00.0", "9b:10.0 9a:00.0 99:00.0 98:00.0 97:02.0"),
    ("a0:00.0", "9f:00.0 9e:00.0 99:04.0 98:00.0 97:02.0"),
    ("a4:00.0", "a3:10.0 a2:00.0 99:08.0 98:00.0 97:02.0"),
)


class Machine:
    """Has as many cards as are asked for, in the guide's places. What the library says is set with tell()."""

    def __init__(self, root: Path, cards: int = 2, *options: str) -> None:
        self.root = root
        self.sysfs = root / "sys"
        self.library = root / REAL
        self._said: dict[str, object] = {"count": cards, "memory": 16 << 30, "numa": 0}
        self.tell(access_point="/sys/bus/pci/drivers/enflame/")
        for index, (place, bridges) in enumerate(GUIDE[:cards]):
            self._add_card(index, place, bridges)
        self.install(*options)
        self.write("sys/module/enflame/version", "1.0.20230110\n")
        self.write("dev/gcuctl", "")
        self.write("usr/local/efsmi/efsmi-1.4.0/bin/efsmi", "")
        self.link("usr/lib/libefml.so", f"/{REAL}")
        self.link("usr/bin/efsmi", "/usr/local/efsmi/efsmi-1.4.0/bin/efsmi")

    def driver(self) -> EnflameDriver:
        return EnflameDriver(root=str(self.root), sysfs=str(self.sysfs))

    def tell(self, **said: object) -> None:
        """Keys of fake_efml.c; two underscores stand for the point: uuid__0="..."."""
        self._said |= {key.replace("__", "."): value for key, value in said.items()}
        text = "".join(f"{key} {value}\n" for key, value in self._said.items())
        self.library.parent.mkdir(parents=True, exist_ok=True)
        self.library.with_name("efml.conf").write_text(text, "utf-8", "surrogateescape")

    def install(self, *options: str) -> None:
        """Puts a library in place as a package does: a new file under the old name."""
        fresh = self.library.with_name("fresh")
        fresh.write_bytes(compiled(*options))
        fresh.replace(self.library)

    def pull(self, index: int) -> None:
        """Takes the card off the bus."""
        self._place(index).rename(self.root / f"pulled{index}")

    def push(self, index: int) -> None:
        (self.root / f"pulled{index}").rename(self._place(index))

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(target)

    def _add_card(self, index: int, place: str, bridges: str) -> None:
        above = [f"0000:{bridge}" for bridge in reversed(bridges.split())]
        folder = "/".join((f"devices/pci{above[0][:7]}", *above, f"0000:{place}"))
        self.write(f"sys/{folder}/enflame/gcu{index}/dev", f"238:{index}\n")
        self.write(f"sys/{folder}/numa_node", "1\n")
        self.link(f"sys/bus/pci/devices/0000:{place}", f"../../../{folder}")
        self.write(f"dev/gcu{index}", "")
        self.tell(**{f"uuid__{index}": f"U5300008010{index}", f"place__{index}": place})

    def _place(self, index: int) -> Path:
        return self.sysfs / f"bus/pci/devices/0000:{GUIDE[index][0]}"


@cache
def compiled(*options: str) -> bytes:
    """The stand-in's file. It is made once for each set of options, since there are many machines."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc or gcc) here to build the stand-in for libefml")
    with TemporaryDirectory() as folder:
        built = Path(folder) / "libefml.so"
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *options, "-o", str(built), str(SOURCE)]
        done = subprocess.run([*command, "-ldl"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return built.read_bytes()
