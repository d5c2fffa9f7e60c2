"""Reads and writes settings in sections, as files with [names] have them."""


def parse(text):
    """Section -> key -> value. Empty lines and comments, which begin with # or ;, are skipped."""
    sections, current = {}, None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1].strip(), {})
        elif "=" in line and current is not None:
            key, value = line.split("=", 1)
            current[key.strip().lower()] = value.strip()
        else:
            raise ValueError(f"line {number} cannot be read")
    return sections


def write(sections):
    """The text of sections, with an empty line between two of them."""
    parts = []
    for name, settings in sections.items():
        lines = [f"[{name}]"] + [f"{key} = {value}" for key, value in settings.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def merged(first, second):
    """The settings of both; those of the second win. Neither is changed."""
    result = {name: dict(settings) for name, settings in first.items()}
    for name, settings in second.items():
        result.setdefault(name, {}).update(settings)
    return result
