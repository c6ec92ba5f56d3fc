"""What every section of the YAML is built from: the base model, number types, fingerprints."""

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

OPERATIONAL: dict[str, Any] = {"operational": True}
"""Marks a field that says how, not what, to compute: it is left out of every fingerprint."""


def no_bool(value: Any) -> Any:
    """Refuse true and false where a number is wanted: pydantic takes them for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


Int = Annotated[int, BeforeValidator(no_bool)]
Float = Annotated[float, BeforeValidator(no_bool)]
Positive = Annotated[Int, Field(ge=1)]
Natural = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[Float, Field(gt=0)]
Share = Annotated[Float, Field(ge=0, le=1)]
OpenShare = Annotated[Float, Field(gt=0, lt=1)]
Momentum = Annotated[Float, Field(ge=0, lt=1)]


def known_or_dotted(*names: str) -> AfterValidator:
    """Accept one of `names`, or the dotted path of the user's own implementation."""

    def check(value: str) -> str:
        prefix, colon, path = value.partition("python:")
        parts = path.strip().replace(":", ".").split(".")
        dotted = colon and not prefix and path.count(":") == 1
        if value in names or (dotted and all(part.isidentifier() for part in parts)):
            return value.replace(" ", "")
        accepted = ", ".join(names)
        raise ValueError(f"accepted: {accepted}, or 'python: package.module:function'")

    return AfterValidator(check)


class Section(BaseModel):
    """Base of every section: frozen, finite numbers, unknown keys refused with what is accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    secretive: ClassVar[bool] = False
    """Whether errors leave out values: one may be a secret that was put there by mistake."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain_unknown_keys(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValidationError.from_exception_data(
                error.title, [cls._explained(detail, value) for detail in error.errors()]
            ) from None

    @classmethod
    def _explained(cls, detail: ErrorDetails, value: Any) -> InitErrorDetails:
        loc = _without_union_tags(detail["loc"], value, detail["type"] == "missing")
        if cls.secretive:
            detail = {**detail, "input": None}
        if detail["type"] == "union_tag_not_found":  # no strategy, no source: a key like others
            loc = (*loc, detail["ctx"]["discriminator"].strip("'"))
            return InitErrorDetails(type="missing", loc=loc, input=detail["input"])
        if detail["type"] != "extra_forbidden" or len(loc) != 1:
            return cast(InitErrorDetails, {**detail, "loc": loc})
        key = str(loc[0])
        near = difflib.get_close_matches(key, cls.model_fields, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        message = f"unknown key {key!r}{hint}; accepted: {', '.join(cls.model_fields)}"
        return InitErrorDetails(
            type="value_error",
            loc=loc,
            input=detail["input"],
            ctx={"error": ValueError(message)},
        )


def _without_union_tags(
    loc: tuple[int | str, ...], value: Any, missing: bool
) -> tuple[int | str, ...]:
    """`loc` as the path of keys in the YAML: pydantic adds the tag of a discriminated union.

    Where a key is `missing`, the last part is its name, whatever the values of the others are.
    """
    path: list[int | str] = []
    for at, part in enumerate(loc):
        match value:
            case Mapping():
                last = at + 1 == len(loc)
                tag = not last or (not missing and part in value.values())
                if part not in value and tag:
                    continue
                value = value.get(part)
            case list() | tuple():
                if not isinstance(part, int):
                    continue
                value = value[part] if part < len(value) else None
            case str() | int() | float():
                continue
        path.append(part)
    return tuple(path)


def fingerprint(*parts: BaseModel | str | int | float | None) -> str:
    """Hash of what `parts` say, the same on every machine; operational fields are left out."""
    said = [_said(p) if isinstance(p, BaseModel) else p for p in parts]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _said(model: BaseModel) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("operational"):
            continue
        value = getattr(model, name)
        result[name] = _said_value(value)
    return result


def _said_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _said(value)
    if isinstance(value, tuple | list):
        return [_said_value(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _said_value(v) for k, v in value.items()}
    return value
