"""Used by every other package: values, files, JSON, errors, child processes, text for logs and terminals."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, dataclass_transform
else:

    def dataclass_transform():  # noqa: D103
        return lambda cls: cls


@dataclass_transform()
class Record:
    """Base of classes that hold values. The module `dataclasses` costs a start more than a decision does.

    The fields are the annotated attributes, those of a base class first. They are given by position or by name, and a
    field without a default must be given: mypy checks that.
    """

    _fields: "ClassVar[tuple[str, ...]]" = ()

    def __init_subclass__(cls) -> None:
        cls._fields = (*cls._fields, *cls.__annotations__)

    def __init__(self, *values: object, **named: object) -> None:
        self.__dict__.update(zip(self._fields, values), **named)  # noqa: B905  # fields with a default may be left out
