"""The errors of the whole program, as one small tree.

    AccelshareError            somebody has to do something; the text says what
    ├── BadInput               what was given is wrong: names the field, the value and what is allowed
    ├── NotReady               right, but not now: asking again later will do
    ├── GrantRefused           a grant that must not be served (forged, copied, overfilling)
    ├── DriverError            a vendor's library or card does not answer
    └── (kube.api.errors)      what the API server said, one class for each answer that code reacts to

"No room" is no error: it is a Rejection, a value (core.placement).
"""


class AccelshareError(Exception):
    """The text is one sentence for the person who has to act."""


class BadInput(AccelshareError):
    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field} is {shown}; allowed is {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class NotReady(AccelshareError):
    pass


class GrantRefused(AccelshareError):
    pass


class DriverError(AccelshareError):
    pass
