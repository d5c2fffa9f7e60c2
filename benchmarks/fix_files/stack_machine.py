"""Evaluates arithmetic expressions by a stack."""

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


def tokens(text):
    """Numbers, operators and parentheses of an expression."""
    found, position = [], 0
    while position < len(text):
        character = text[position]
        if character.isspace():
            position += 1
        elif character.isdigit():
            end = position
            while end < len(text) and text[end].isdigit():
                end += 1
            found.append(int(text[position:end]))
            position = end
        else:
            found.append(character)
            position += 1
    return found


def to_postfix(text):
    """The expression in postfix order, by the shunting-yard algorithm."""
    output, operators = [], []
    for token in tokens(text):
        if isinstance(token, int):
            output.append(token)
        elif token == "(":
            operators.append(token)
        elif token == ")":
            while operators[-1] != "(":
                output.append(operators.pop())
            operators.pop()
        else:
            # Operators of equal precedence are applied from the left.
            while operators and PRECEDENCE.get(operators[-1], 0) >= PRECEDENCE[token]:
                output.append(operators.pop())
            operators.append(token)
    return output + operators[::-1]


def evaluate(text):
    """The value of an expression."""
    stack = []
    for token in to_postfix(text):
        if isinstance(token, int):
            stack.append(token)
            continue
        second, first = stack.pop(), stack.pop()
        if token == "+":
            stack.append(first + second)
        elif token == "-":
            stack.append(first - second)
        elif token == "*":
            stack.append(first * second)
        else:
            stack.append(first / second)
    return stack.pop()
