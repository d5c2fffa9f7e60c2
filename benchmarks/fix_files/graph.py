"""Paths in graphs, which map each node to its neighbours with the lengths of the edges."""

import heapq


def shortest_path(graph, start, goal):
    """(length, nodes) of the shortest path by Dijkstra's algorithm; None where there is none."""
    queue = [(0, start, [start])]
    done = set()
    while queue:
        length, node, path = heapq.heappop(queue)
        if node == goal:
            return length, path
        if node in done:
            continue
        done.add(node)
        for neighbour, edge in graph.get(node, {}).items():
            if neighbour not in done:
                heapq.heappush(queue, (length + edge, neighbour, path + [neighbour]))
    return None


def reachable(graph, start):
    """All nodes that can be reached, the start included."""
    found, pending = {start}, [start]
    while pending:
        for neighbour in graph.get(pending.pop(), {}):
            if neighbour not in found:
                found.add(neighbour)
                pending.append(neighbour)
    return found


def has_cycle(graph):
    """Whether a path leads from a node back to it."""
    return any(node in reachable(graph, neighbour) for node in graph for neighbour in graph[node])
