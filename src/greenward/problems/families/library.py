"""All operations, by name and by the kind that they take."""

from __future__ import annotations

from greenward.problems.families.numeric import NUMERIC
from greenward.problems.families.operation import Kind, Operation, Template
from greenward.problems.families.textual import TEXTUAL

TEMPLATES: dict[tuple[Kind, Kind], tuple[Template, ...]] = {**NUMERIC, **TEXTUAL}

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for (takes, gives), templates in TEMPLATES.items()
    for template in templates
    for operation in template.operations(takes, gives)
}

TEMPLATE_OF: dict[str, str] = {
    operation.name: template.name
    for (takes, gives), templates in TEMPLATES.items()
    for template in templates
    for operation in template.operations(takes, gives)
}

OPERATIONS_TAKING: dict[Kind, tuple[Operation, ...]] = {
    kind: tuple(operation for operation in OPERATIONS.values() if operation.takes is kind) for kind in Kind
}
