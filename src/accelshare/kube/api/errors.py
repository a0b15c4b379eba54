"""What the API server said, as errors: one class for each answer that code reacts to.

    ApiError               any answer that is not a success
    ├── Unauthorized  401  ├── Forbidden  403   ├── NotFound         404
    ├── Conflict      409  ├── Gone       410   ├── Invalid          422
    ├── TooManyRequests 429
    ├── ServerError   5xx
    ├── UnreadableAnswer   a success whose body is not what was asked for
    └── Unreachable        no answer at all: whether the call took effect is unknown

The rule that matters most is `definite`: only a definite error proves that a write did not happen.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from accelshare.core.errors import AccelshareError

# A time-out and a throttle are 4xx by number, but say nothing final about the call.
_PASSING = frozenset({408, 429})
_MESSAGE_LIMIT = 1_000


class ApiError(AccelshareError):
    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        verb: str = "",
        path: str = "",
        retry_after: float | None = None,
    ) -> None:
        call = f"{verb} {path}".strip() or "the call"
        super().__init__(self._sentence(call, status, reason, message))
        self.status = status
        self.reason = reason
        self.message = message
        self.verb = verb
        self.path = path
        self.retry_after = retry_after

    @staticmethod
    def _sentence(call: str, status: int, reason: str, message: str) -> str:
        said = f"{status} {reason}".rstrip()
        return f"{call} was answered {said}: {message}" if message else f"{call} was answered {said}"

    @property
    def definite(self) -> bool:
        """The server has refused, so nothing was written. False means that nobody knows yet."""
        return 400 <= self.status < 500 and self.status not in _PASSING


class Unauthorized(ApiError):
    pass


class Forbidden(ApiError):
    pass


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    pass


class Gone(ApiError):
    pass


class Invalid(ApiError):
    pass


class TooManyRequests(ApiError):
    pass


class ServerError(ApiError):
    pass


class UnreadableAnswer(ApiError):
    """The server said yes, in words that we do not understand: a write has happened."""

    @staticmethod
    def _sentence(call: str, status: int, reason: str, message: str) -> str:
        return f"{call} was answered {status} with a body that cannot be read as {reason}: {message}"


class Unreachable(ApiError):
    """The transport failed or the time was up. The call may have taken effect, may still, or may never."""

    def __init__(self, message: str, *, verb: str = "", path: str = "") -> None:
        super().__init__(0, "Unreachable", message, verb=verb, path=path)

    @staticmethod
    def _sentence(call: str, status: int, reason: str, message: str) -> str:
        return f"{call} got no answer: {message}"


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


class Status(Struct):
    """The object that Kubernetes answers with when it refuses, and puts in a watch's ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""


_STATUS = msgspec.json.Decoder(Status)


def read_status(body: bytes) -> Status:
    """The Status in a body; where a proxy answered in place of the API server, its text as the message."""
    try:
        return _STATUS.decode(body)
    except msgspec.DecodeError:
        text = " ".join(body.decode("utf-8", "replace").split())
        return Status(message=text[:_MESSAGE_LIMIT])


def from_answer(
    status: int, body: bytes, *, verb: str = "", path: str = "", retry_after: float | None = None
) -> ApiError:
    """The one place where an answer of the API server becomes an error."""
    said = read_status(body)
    kind = _BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    return kind(status, said.reason, said.message, verb=verb, path=path, retry_after=retry_after)
