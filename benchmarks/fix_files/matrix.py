"""Operations on matrices, which are lists of rows."""


def transpose(matrix):
    """Rows become columns."""
    return [list(column) for column in zip(*matrix)]


def multiply(left, right):
    """The matrix product."""
    if len(left[0]) != len(right):
        raise ValueError("the shapes do not fit")
    columns = transpose(right)
    return [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in left]


def identity(size):
    """Ones on the diagonal, zeros elsewhere."""
    return [[int(row == column) for column in range(size)] for row in range(size)]


def power(matrix, exponent):
    """The matrix multiplied by itself, by repeated squaring."""
    result = identity(len(matrix))
    while exponent:
        if exponent % 2:
            result = multiply(result, matrix)
        matrix = multiply(matrix, matrix)
        exponent //= 2
    return result


def rotate(matrix):
    """The matrix turned clockwise by a quarter."""
    return transpose(matrix[::-1])
