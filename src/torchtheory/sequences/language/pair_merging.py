"""The pairs that byte-pair encoding merges: the most frequent first, counted as they change."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

Pair = tuple[int, int]


def learn_merges(
    words: Mapping[tuple[int, ...], int],
    join: Callable[[int, int], int],
    *,
    enough: Callable[[], bool],
    least: int,
) -> list[Pair]:
    """Merge the most frequent pair of neighbors, again and again; the merges, in their order.

    Of pairs that are equally frequent the one with the smaller numbers is taken, so that the result
    does not depend on any order of words. Each merge visits only the places where its pair stands.

    Args:
        words: sequences of symbols with their counts; pairs do not reach beyond a word.
        join: the number of the symbol that two symbols become.
        enough: asked before each merge whether to stop.
        least: pairs with a smaller count are not merged.

    Cost: time and memory in proportion to the symbols of the different words, times a logarithm.
    """
    symbols: list[int] = []
    after: list[int] = []
    before: list[int] = []
    weight: list[int] = []
    counts: dict[Pair, int] = defaultdict(int)
    places: dict[Pair, set[int]] = defaultdict(set)
    for word, count in words.items():
        first = len(symbols)
        last = first + len(word) - 1
        for i, symbol in enumerate(word, first):
            symbols.append(symbol)
            before.append(i - 1 if i > first else -1)
            after.append(i + 1 if i < last else -1)
            weight.append(count)
        for i, pair in enumerate(itertools.pairwise(word), first):
            counts[pair] += count
            places[pair].add(i)
    queue = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(queue)
    merges: list[Pair] = []
    while queue and not enough():
        n, pair = heapq.heappop(queue)
        if counts.get(pair, 0) != -n:
            continue  # counted anew since, and then put into the queue again
        if -n < least:
            break
        a, b = pair
        new = join(a, b)
        merges.append(pair)
        changed: set[Pair] = set()
        # from left to right: of three equal symbols the first two are merged
        for i in sorted(places.pop(pair)):
            j = after[i]
            if symbols[i] != a or j < 0 or symbols[j] != b:
                continue  # merged into another symbol since
            left, right, times = before[i], after[j], weight[i]
            if left >= 0:
                counts[symbols[left], a] -= times
                counts[symbols[left], new] += times
                places[symbols[left], new].add(left)
                changed |= {(symbols[left], a), (symbols[left], new)}
            if right >= 0:
                counts[b, symbols[right]] -= times
                counts[new, symbols[right]] += times
                places[new, symbols[right]].add(i)
                changed |= {(b, symbols[right]), (new, symbols[right])}
                before[right] = i
            symbols[i], symbols[j], after[i] = new, -1, right
        counts.pop(pair, None)
        changed.discard(pair)
        for other in changed:
            if counts[other] > 0:
                heapq.heappush(queue, (-counts[other], other))
            else:
                del counts[other]
                places.pop(other, None)
    return merges


def apply_merges(symbols: Iterable[int], merges: Mapping[Pair, tuple[int, int]]) -> list[int]:
    """Symbols after all merges that apply, the earliest learned first, and from left to right.

    Args:
        symbols: of one word.
        merges: rank and new symbol of each pair.

    Cost: n log n for n symbols.
    """
    chain = list(symbols)
    after = [*range(1, len(chain)), -1]
    before = list(range(-1, len(chain) - 1))
    queue = [
        (merges[pair][0], i) for i, pair in enumerate(itertools.pairwise(chain)) if pair in merges
    ]
    heapq.heapify(queue)
    while queue:
        rank, i = heapq.heappop(queue)
        j = after[i]
        found = merges.get((chain[i], chain[j])) if j >= 0 else None
        if found is None or found[0] != rank:
            continue  # one of the two was merged into another symbol since
        chain[i], chain[j], after[i] = found[1], -1, after[j]
        right, left = after[i], before[i]
        if right >= 0:
            before[right] = i
            if (chain[i], chain[right]) in merges:
                heapq.heappush(queue, (merges[chain[i], chain[right]][0], i))
        if left >= 0 and (chain[left], chain[i]) in merges:
            heapq.heappush(queue, (merges[chain[left], chain[i]][0], left))
    return [symbol for symbol in chain if symbol >= 0]
