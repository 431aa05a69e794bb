"""Used by every other package: values, files, JSON, errors, child processes, text for logs and terminals."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, dataclass_transform
else:

    def dataclass_transform():  # noqa: D103  # typing's, which has its own
        return lambda cls: cls


@dataclass_transform()
class Record:
    """Base of classes that hold values. The module `dataclasses` costs a start more than a decision does.

    The fields are the annotated attributes, those of a base class first. They are given by position or by name, and a
    field without a default must be given: mypy checks that. To make one takes three times as long as with an `__init__`
    that names the fields, so classes with many objects have that.
    """

    _fields: "ClassVar[tuple[str, ...]]" = ()

    def __init_subclass__(cls) -> None:
        cls._fields = (*cls._fields, *cls.__annotations__)

    def __init__(self, *values: object, **named: object) -> None:
        for field, value in zip(self._fields, values):  # noqa: B905  # those with a default may be left out
            setattr(self, field, value)
        for field, value in named.items():
            setattr(self, field, value)
