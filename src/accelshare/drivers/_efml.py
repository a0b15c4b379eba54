"""libefml through ctypes: where the host has it, when to open it anew, and the layouts of its functions.

Rule 1: every function answers a code and writes through its last argument; any code but 0 is an EfmlError.
Rule 2: a function that this library does not have answers as the library itself would, with code 9. So old
        and new libraries are asked alike, and nobody has to know which function came when.
Rule 3: what a library may write into is larger than the layout known here, since a structure grows at its
        end from version to version.

The library keeps SIGUSR1 and SIGUSR2 for itself. No process that opens it may use them for anything else.
"""

import ctypes
import logging
import os
import signal
from _ctypes import dlclose
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path

from accelshare.core.errors import DriverError

log = logging.getLogger(__name__)

NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 9
DEPRECATED = 13
SILENT = 0  # a code of ours: the library said success where it had to say something, and did not

MEANINGS = {
    1: "not initialised",
    2: "bad argument",
    NOT_SUPPORTED: "not supported",
    4: "library not found",
    5: "bad error code",
    6: "driver not loaded",
    7: "wrong link port number",
    8: "bad input",
    FUNCTION_NOT_FOUND: "function not found",
    10: "the driver's version cannot be read",
    11: "driver not compatible with the library",
    12: "no device",
    DEPRECATED: "deprecated",
    253: "timeout",
    254: "failed",
    255: "beyond the last code",
    SILENT: "success, and nothing else",
}

NOT_OFFERED = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED)

REMEDIES = {
    6: "load the enflame kernel driver (/sys/module/enflame must be there)",
    10: "load the enflame kernel driver and see that /sys/module/enflame/version can be read",
    11: "install the driver and the library of one release",
    12: "see whether `lspci -d 1e36:` lists the cards, and what dmesg says of them",
}

FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu")
NAMES = (
    "libefml.so",
    "libefml.so.1",
    "libefml.so.2",
    "libefml.so.2.1",
    "libefml.so.2.0",
    "libefml.so.1.0.0",
)

SPARE = 256
LONGEST_STRING = 128
IGNORE = 1  # SIG_IGN, as C has it
MOST_LINKS = 40  # symbolic links in one path: as many as Linux follows


class DeviceInfo(Structure):
    _fields_ = (
        ("name", c_char * LONGEST_STRING),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("domain", c_uint32),
        ("bus", c_uint32),
        ("dev", c_uint32),
        ("func", c_uint32),
        ("logic_id", c_uint32),
        ("spare", c_char * SPARE),
    )


class DeviceMemory(Structure):
    _fields_ = (("total", c_uint64), ("used", c_uint32), ("spare", c_char * SPARE))  # bytes, and MiB


class RmaStatus(Structure):
    _fields_ = (("supported", c_bool), ("flags", c_bool), ("spare", c_char * SPARE))


class LinkEnd(Structure):
    _fields_ = (
        ("uuid", c_char * 16),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("domain", c_uint32),
        ("bus", c_uint32),
        ("dev", c_uint32),
        ("func", c_uint32),
        ("port", c_uint32),
        ("kind", c_int),
    )


class LinkPort(Structure):
    _fields_ = (
        ("connected", c_uint32),
        ("here", LinkEnd),
        ("remote_card", c_uint32),
        ("there", LinkEnd),
        ("spare", c_char * SPARE),
    )


class _Symbol(Structure):
    """What dladdr says of an address."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p))


class EfmlError(Exception):
    """A function of the library answered another code than success."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} says: {MEANINGS.get(code, 'a code without a name')} ({code})")
        self.code = code


class Efml:
    """The library, loaded and initialised. After close() nothing here may be called."""

    def __init__(self, path: str) -> None:
        """Raises OSError where the file cannot be loaded, and EfmlError where it cannot be initialised."""
        self._library = ctypes.CDLL(path)
        _ignore_its_signals()
        try:
            self._ask("EfmlInit", c_bool(False))
        except EfmlError:
            dlclose(self._library._handle)
            raise

    def close(self) -> None:
        """Shut down and unload: only a library that nobody holds is read anew from its file."""
        shutdown = getattr(self._library, "EfmlShutdown", None)
        if shutdown is not None:
            shutdown()
        dlclose(self._library._handle)

    def count(self) -> int:
        count = c_uint32()
        self._ask("EfmlGetDevCount", ctypes.byref(count))
        return count.value

    def access_point(self) -> str:
        """What a card's folder in sysfs begins with."""
        buffer = ctypes.create_string_buffer(LONGEST_STRING + SPARE)
        self._ask("EfmlGetDriverAccessPoint", buffer)
        return text_of(buffer.value)

    def info(self, index: int) -> DeviceInfo:
        info = DeviceInfo()
        self._ask("EfmlGetDevInfo", c_uint32(index), ctypes.byref(info))
        return info

    def memory(self, index: int) -> int:
        memory = DeviceMemory()
        self._ask("EfmlGetDevMem", c_uint32(index), ctypes.byref(memory))
        if not memory.total:
            raise EfmlError("EfmlGetDevMem", SILENT)
        return int(memory.total)

    def text(self, function: str, index: int) -> str:
        buffer = ctypes.create_string_buffer(LONGEST_STRING + SPARE)
        self._ask(function, c_uint32(index), buffer)
        return text_of(buffer.value)

    def flag(self, function: str, index: int) -> bool:
        flag = c_bool()
        self._ask(function, c_uint32(index), ctypes.byref(flag))
        return flag.value

    def numa(self, index: int) -> int:
        node = c_int()
        self._ask("EfmlGetNumaNode", c_uint32(index), ctypes.byref(node))
        return node.value

    def rma(self, index: int) -> RmaStatus:
        status = RmaStatus()
        self._ask("EfmlGetDevRmaStatus", c_uint32(index), ctypes.byref(status))
        return status

    def link_count(self, index: int) -> int:
        count = c_uint32()
        self._ask("EfmlGetGcuLarePortNum", c_uint32(index), ctypes.byref(count))
        return count.value

    def link(self, index: int, port: int) -> LinkPort:
        link = LinkPort()
        self._ask("EfmlGetGcuLarePortInfo", c_uint32(index), c_uint32(port), ctypes.byref(link))
        return link

    def _ask(self, function: str, *arguments: object) -> None:
        entry = getattr(self._library, function, None)
        code = FUNCTION_NOT_FOUND if entry is None else int(entry(*arguments))
        if code:
            raise EfmlError(function, code)


def path_of(name: str) -> str:
    """Which file the dynamic linker takes for a bare name. Raises OSError where it finds none."""
    library = ctypes.CDLL(name)
    try:
        dladdr = ctypes.CDLL(None).dladdr
        dladdr.argtypes = (c_void_p, POINTER(_Symbol))
        symbol = _Symbol()
        entry = getattr(library, "EfmlInit", None)
        if entry is None or not dladdr(ctypes.cast(entry, c_void_p), ctypes.byref(symbol)):
            raise OSError(f"{name}: has no EfmlInit")
        return text_of(symbol.file)
    finally:
        dlclose(library._handle)


def text_of(raw: bytes) -> str:
    """Bytes that are no UTF-8 stay visible and stay different from one another."""
    return raw.decode("utf-8", "backslashreplace").strip()


def _ignore_its_signals() -> None:
    """A signal of the library must not end the process before its own handlers stand, or after they are gone.

    In C, since Python sets handlers only in its main thread; one that somebody has set is left alone.
    """
    handle = ctypes.CDLL(None).signal
    handle.argtypes, handle.restype = (c_int, c_void_p), c_void_p
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            handle(number, IGNORE)


class Host:
    """The host's files, seen from a process for which the host's root stands elsewhere."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def here(self, path: str) -> str:
        """Where this process finds what stands at the host's path."""
        return self.root + self.follow(path)

    def follow(self, path: str) -> str:
        """The host's path without links: they are followed inside its root, as the host itself would."""
        done, steps, links = "", path.split("/")[::-1], 0
        while steps:
            step = steps.pop()
            if step == "..":
                done = os.path.dirname(done).rstrip("/")
            if step in ("", ".", ".."):
                continue
            try:
                target = os.readlink(f"{self.root}{done}/{step}")
            except OSError:  # no link, or nothing
                done = f"{done}/{step}"
                continue
            links += 1
            if links > MOST_LINKS:
                return path
            if target.startswith("/"):
                done = ""
            steps.extend(target.split("/")[::-1])
        return done or "/"


class Library:
    """The one libefml of the host, found, and opened again when it or the kernel driver was replaced."""

    def __init__(self, host: Host, sysfs: str, wanted: str) -> None:
        self._host = host
        self._sysfs = sysfs
        self._wanted = wanted
        self._efml: Efml | None = None
        self._stamp: object = None
        self._loaded: object = None  # stamp of the file that was loaded last
        self._files = 0  # how many different ones have been loaded
        self.path = ""  # the host's, by which it was found

    def opened(self) -> tuple[Efml, int]:
        """The library, and how many cards it counts, at least one. Raises DriverError."""
        if self._efml is not None and self._stamp != self._stamp_of(self.path):
            log.info("the Enflame driver or its library was replaced: %s is opened again", self.path)
            self.close()
        efml = self._efml or self._open()
        try:
            count = efml.count()
        except EfmlError as error:
            self.close()
            raise DriverError(f"{self.path} cannot count the cards: {_advice(error)}") from error
        if not count:
            self.close()
            raise DriverError(f"{self.path} lists no card; {REMEDIES[12]}")
        return efml, count

    def close(self) -> None:
        if self._efml is not None:
            self._efml.close()
            self._efml = None

    def names(self) -> list[str]:
        """Every name of the library in its folder, since programs are linked against any of them."""
        tried = [self.path] if self.path else [path for path in self._candidates() if "/" in path]
        path = next((path for path in tried if os.path.isfile(self._host.here(path))), "")
        if not path:
            return []
        folder = os.path.dirname(path)
        beside = [name for name in os.listdir(self._host.here(folder)) if name.startswith(NAMES[0])]
        names = sorted({os.path.basename(path), *beside})
        # Where /lib is a link to /usr/lib the loader may say either; in a container they may be two folders.
        return [f"{each}/{name}" for each in (folder, self._host.follow(folder)) for name in names]

    def _open(self) -> Efml:
        tried = []
        for candidate in self._candidates():
            try:
                library = candidate if "/" in candidate else path_of(candidate)
                # Taken before it is opened: a replacement in between is seen by the next call.
                stamp = self._stamp_of(library)
                self._efml = Efml(self._spelling(library, stamp))
            except EfmlError as error:
                raise DriverError(f"{candidate} cannot be used: {_advice(error)}") from error
            except OSError as error:
                tried.append(candidate if _is_absent(candidate, error) else f"{candidate} ({error})")
                continue
            self.path, self._stamp = library, stamp
            return self._efml
        raise DriverError(
            f"no libefml can be loaded; install the Enflame driver package. Tried: {', '.join(tried)}"
        )

    def _candidates(self) -> Iterator[str]:
        if self._wanted:
            yield self._wanted
            return
        if not self._host.root:  # the linker's own paths are this container's, not those of a host elsewhere
            yield from NAMES
        for folder in FOLDERS:
            yield from (f"{folder}/{name}" for name in NAMES)

    def _spelling(self, library: str, stamp: object) -> str:
        """The path of the real file, spelled differently for every file that it has been.

        dlopen takes a path that it knows for the library that it knows, whatever the file is by now, as long
        as that one is loaded; and C++ code can make a library that is never unloaded. A new spelling makes
        it look at the file.
        """
        folder, name = os.path.split(self._host.here(library))
        os.stat(f"{folder}/{name}")  # says "no such file" as an errno, where dlopen has a sentence only
        if stamp != self._loaded:
            self._files += 1
            self._loaded = stamp
        return f"{folder}/{'./' * self._files}{name}"

    def _stamp_of(self, library: str) -> tuple[object, ...]:
        """What is different once the library or the kernel driver was replaced."""
        path = self._host.here(library)
        version = read(f"{self._sysfs}/module/enflame/version")
        try:
            file = os.stat(path)
        except OSError:
            return (path, version)
        return (path, version, file.st_dev, file.st_ino, file.st_mtime_ns)


def _advice(error: EfmlError) -> str:
    return f"{error}; {REMEDIES.get(error.code, 'see what dmesg says of the enflame driver')}"


def _is_absent(candidate: str, error: OSError) -> bool:
    return isinstance(error, FileNotFoundError) or str(error).startswith(
        f"{candidate}: cannot open shared object"
    )


def read(path: str) -> str:
    """The text of a small file, "" where there is none."""
    try:
        return Path(path).read_text(errors="backslashreplace").strip()
    except OSError:
        return ""
